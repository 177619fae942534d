"""Threshold expressions of ``kvoffload.toml``: text in, frozen records out.

The language has one sentence form per kind:

    [PHASE.][TIER.]METRIC CMP VALUE                          ttft_p99 < 1.5s, restored.host.hit_rate >= 0.6
    [PHASE.]METRIC regression [over ARM] CMP SHARE [or FLOOR]   ttft_p99 regression < 10% or 20ms
    [PHASE.]METRIC gain over ARM CMP SHARE                   ttft_p50 gain over control >= 30%

It is regular: no nesting, no precedence. One pattern splits it into words, and each word is checked where it stands, so
that an error can name the word, what is legal there and which one was probably meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, TypeAlias, cast

from pytest_kvoffload.errors import ConfigError, did_you_mean

ThresholdKind: TypeAlias = Literal["absolute", "regression", "gain"]
Comparator: TypeAlias = Literal["<", "<=", ">", ">="]
Dimension: TypeAlias = Literal["seconds", "share", "count"]

SECTION, KEY = "gate", "thresholds"
CONTROL = "control"
"""The arm that may be named without being configured: recompute."""
PHASES = ("cold", "resident", "restored")
TIERS = ("device", "external", "host", "disk", "p2p", "lmcache_l1", "lmcache_l2")
LATENCIES = ("ttft", "tpot", "e2e")
"""Metrics of single requests, in seconds; each needs a quantile: ``ttft_p99``."""
METRICS: dict[str, Dimension] = {
    **dict.fromkeys(LATENCIES, "seconds"),
    "hit_rate": "share",
    "failed_requests": "count",
    "preemptions": "count",
}
_HIGHER_IS_BETTER = frozenset({"hit_rate"})
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_WORD = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|(?!or\b)[A-Za-z]+)?(?=\s|$)"
    r"|(?P<name>[A-Za-z][\w.-]*)|(?P<comparator>[<>]=?|==?|!=)|(?P<other>\S+))"
)
_SUBJECT = re.compile(r"(?P<path>(?:[\w-]+\.)*?)(?P<metric>[A-Za-z]\w*?)(?:_p(?P<percent>\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One parsed threshold."""

    text: str
    """The expression as it was written."""
    metric: str
    """A key of ``METRICS``."""
    quantile: float | None
    """In (0, 1) for latencies, ``None`` for everything else."""
    phase: str
    """The phase it is judged in; ``restored`` when none was written."""
    tier: str | None
    """The tier of a hit rate; ``None`` is device and external together."""
    kind: ThresholdKind
    comparator: Comparator
    bound: float
    """``absolute``: seconds, a share in [0, 1] or a count. ``regression`` and ``gain``: a share (0.10 is 10 %)."""
    floor: float | None = None
    """``regression`` only: a change smaller than this, in the metric's own unit, is accepted whatever its share."""
    against: str | None = None
    """``regression`` and ``gain``: the arm compared with; a regression's default is ``reference``."""

    @property
    def dimension(self) -> Dimension:
        """What the metric is measured in."""
        return METRICS[self.metric]

    @property
    def label(self) -> str:
        """The subject as it is written in full: ``restored.host.hit_rate``, ``restored.ttft_p99``."""
        name = self.metric if self.quantile is None else f"{self.metric}_p{self.quantile * 100:g}"
        return ".".join(part for part in (self.phase, self.tier, name) if part)

    def holds(self, value: float) -> bool:
        """Whether a value keeps an ``absolute`` bound."""
        return {
            "<": value < self.bound,
            "<=": value <= self.bound,
            ">": value > self.bound,
            ">=": value >= self.bound,
        }[self.comparator]


def parse_thresholds(
    texts: Iterable[str], *, arms: Sequence[str] | None = None, source: str | None = None
) -> tuple[Threshold, ...]:
    """Parse the expressions of a configuration.

    Args:
        texts: the expressions, verbatim.
        arms: names of the arms there are; ``None`` accepts any. ``reference`` is always one.
        source: the file, for messages.

    Raises:
        ConfigError: an expression that cannot be meant, or one that says the same as an earlier one.
    """
    found: list[Threshold] = []
    for text in texts:
        threshold = parse_threshold(text, arms=arms, source=source)
        for earlier in found:
            if (earlier.label, earlier.kind, earlier.against) == (threshold.label, threshold.kind, threshold.against):
                raise ConfigError(
                    section=SECTION,
                    key=KEY,
                    got=f"{earlier.text!r} and {text!r}",
                    expected=f"one {threshold.kind} threshold of {threshold.label}",
                    source=source,
                )
        found.append(threshold)
    return tuple(found)


def parse_threshold(text: str, *, arms: Sequence[str] | None = None, source: str | None = None) -> Threshold:
    """Parse one expression; arguments and errors as :func:`parse_thresholds`."""
    return _Parser(text, arms, source).threshold()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Word:
    kind: str
    text: str
    value: float = 0.0
    unit: str = ""


class _Parser:
    """Reads one expression from left to right."""

    def __init__(self, text: str, arms: Sequence[str] | None, source: str | None) -> None:
        self._text, self._arms, self._source = text, arms, source
        self._words = list(_split(text))
        self._next = 0

    def threshold(self) -> Threshold:
        phase, tier, metric, quantile = self._subject()
        kind: ThresholdKind = "absolute"
        against: str | None = None
        word = self._peek()
        if word is not None and word.kind == "name":
            if word.text not in {"regression", "gain"}:
                self._fail(word, "a comparison, regression or gain", ("regression", "gain"))
            kind = cast("ThresholdKind", word.text)
            self._next += 1
            against = self._against(kind)
        comparator = self._comparator(kind, metric)
        bound, floor = self._bound(kind, metric)
        rest = self._peek()
        if rest is not None:
            self._fail(
                rest, "nothing more" if floor is not None or kind != "regression" else "or, or nothing more", ("or",)
            )
        return Threshold(
            text=self._text,
            metric=metric,
            quantile=quantile,
            phase=phase,
            tier=tier,
            kind=kind,
            comparator=comparator,
            bound=bound,
            floor=floor,
            against=against,
        )

    def _subject(self) -> tuple[str, str | None, str, float | None]:
        word = self._take("name", f"a metric ({', '.join(METRICS)})")
        match = _SUBJECT.fullmatch(word.text)
        if match is None:
            self._fail(word, "[PHASE.][TIER.]METRIC, such as restored.ttft_p99", ())
        metric, percent = match["metric"], match["percent"]
        if metric not in METRICS:
            written = word.text.rpartition(".")[2] if percent is None else metric
            self._fail(_Word(kind="name", text=written), f"a metric ({', '.join(METRICS)})", METRICS)
        phase, tier = "restored", None
        seen: set[str] = set()
        for part in filter(None, match["path"].split(".")):
            group = "phase" if part in PHASES else "tier" if part in TIERS else ""
            if not group:
                legal = f"a phase ({', '.join(PHASES)}) or a tier ({', '.join(TIERS)})"
                self._fail(_Word(kind="name", text=part), legal, (*PHASES, *TIERS))
            if group in seen or (group == "phase" and "tier" in seen):
                self._fail(word, "at most one phase and, after it, one tier", ())
            seen.add(group)
            phase, tier = (part, tier) if group == "phase" else (phase, part)
        if tier is not None and metric != "hit_rate":
            self._fail(word, f"a tier before hit_rate only: {metric} is not counted per tier", ())
        return phase, tier, metric, self._quantile(word, metric, percent)

    def _quantile(self, word: _Word, metric: str, percent: str | None) -> float | None:
        if metric not in LATENCIES:
            if percent is not None:
                self._fail(word, f"{metric} without a quantile: it is one number a run", ())
            return None
        if percent is None:
            self._fail(word, f"a quantile with {metric}, such as {metric}_p99", ())
        if not 0.0 < float(percent) < 100.0:
            # p999 is how some tools write p99.9.
            hint = (f"{metric}_p{percent[:2]}.{percent[2:]}",) if len(percent) > 2 and percent[:2] != "10" else ()
            self._fail(word, "a quantile between p0 and p100", hint, always=True)
        return float(percent) / 100.0

    def _against(self, kind: ThresholdKind) -> str:
        word = self._peek()
        if word is not None and word.kind == "name":
            if word.text != "over":
                self._fail(word, "over ARM" if kind == "gain" else "over ARM, or a comparison", ("over",))
            self._next += 1
            arm = self._take("name", "the name of an arm")
            known = None if self._arms is None else (*self._arms, "reference")
            if known is not None and arm.text not in known:
                self._fail(arm, f"one of the arms {', '.join(dict.fromkeys(known))}", known)
            return arm.text
        if kind == "gain":
            self._fail(word, "over ARM: a gain is over something, such as control", ())
        return "reference"

    def _comparator(self, kind: ThresholdKind, metric: str) -> Comparator:
        word = self._take("comparator", "a comparison (<, <=, >, >=)")
        upwards = kind == "gain" or (kind == "absolute" and metric in _HIGHER_IS_BETTER)
        legal = (">=", ">") if upwards else ("<=", "<")
        if word.text not in legal:
            what = f"a {kind} of {metric}" if kind != "absolute" else metric
            self._fail(
                word,
                f"{legal[0]} or {legal[1]}: a threshold says what is good, and {what} is good when "
                f"{'high' if upwards else 'low'}",
                (),
            )
        return cast("Comparator", word.text)

    def _bound(self, kind: ThresholdKind, metric: str) -> tuple[float, float | None]:
        dimension = METRICS[metric]
        if kind == "absolute":
            return self._quantity(dimension), None
        word = self._take("number", "a share in percent, such as 10%")
        if word.unit != "%":
            self._fail(word, "a share in percent, such as 10%", (f"{word.value:g}%",), always=not word.unit)
        if word.value <= 0.0 or (kind == "gain" and word.value >= 100.0):
            self._fail(word, "more than 0%" + (" and less than 100%" if kind == "gain" else ""), ())
        following = self._peek()
        if kind == "regression" and following is not None and following.text == "or":
            self._next += 1
            return word.value / 100.0, self._quantity(dimension, floor=True)
        return word.value / 100.0, None

    def _quantity(self, dimension: Dimension, *, floor: bool = False) -> float:
        if dimension == "seconds":
            word = self._take("number", "a duration, such as 1.5s or 20ms")
            if word.unit not in _SECONDS:
                close = tuple(f"{word.value:g}{unit}" for unit in ("s", "ms")) if not word.unit else ()
                hint = f" (did you mean {' or '.join(close)}?)" if close else ""
                self._fail(word, f"a duration with its unit ({', '.join(_SECONDS)}){hint}", ())
            if word.value <= 0.0:
                self._fail(word, "a duration above zero", ())
            return word.value * _SECONDS[word.unit]
        if dimension == "share":
            word = self._take("number", "a share, such as 0.6 or 60%")
            share = word.value / 100.0 if word.unit == "%" else word.value
            if word.unit not in {"", "%"} or not 0.0 <= share <= 1.0 or (floor and share == 0.0):
                self._fail(word, "a share between 0 and 1, such as 0.6 or 60%", ())
            return share
        word = self._take("number", "a count, such as 0")
        if word.unit or word.value != int(word.value):
            self._fail(word, "a whole number", ())
        return word.value

    def _peek(self) -> _Word | None:
        return self._words[self._next] if self._next < len(self._words) else None

    def _take(self, kind: str, expected: str) -> _Word:
        word = self._peek()
        if word is None or word.kind != kind:
            self._fail(word, expected, ())
        self._next += 1
        return word

    def _fail(self, word: _Word | None, expected: str, known: Iterable[str], *, always: bool = False) -> NoReturn:
        got = "nothing" if word is None else repr(word.text)
        close = list(known)
        hint = ""
        if word is not None and close:
            hint = f" (did you mean {close[0]!r}?)" if always else did_you_mean(word.text, close)
        raise ConfigError(
            section=SECTION,
            key=KEY,
            got=f"{got} in {self._text!r}",
            expected=expected,
            source=self._source,
            hint=hint,
        )


def _split(text: str) -> Iterator[_Word]:
    for match in _WORD.finditer(text.rstrip()):
        if match["number"] is not None:
            unit = match["unit"] or ""
            yield _Word(kind="number", text=match[0].strip(), value=float(match["number"]), unit=unit)
        else:
            kind = cast("str", match.lastgroup)
            yield _Word(kind=kind, text=match[kind])
