"""A Prometheus exposition, plain text or OpenMetrics, parsed into the project's samples.

The parser is prometheus_client's. Around it stand the checks that it leaves out on purpose: it takes a page that was
cut off in the middle for a short one, and a number that lost its last digits for a smaller number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TextIO, cast

from pytest_kvoffload.records import Sample, SampleKind

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_KINDS: dict[str, SampleKind] = {
    "counter": "counter",
    "gauge": "gauge",
    "histogram": "histogram",
    "summary": "summary",
    "info": "gauge",
    "stateset": "gauge",
}
_OPENMETRICS = "application/openmetrics-text"


class ExpositionError(ValueError):
    """The text is not a complete exposition; the message says what is wrong with it."""


class _Lines:
    """Iterates over lines and remembers where it is, because the parser does not say."""

    def __init__(self, text: str, tick: Callable[[], None]):
        # Not splitlines(): it would split inside label values that hold other line separators.
        self._lines, self._tick = text.removesuffix("\n").split("\n"), tick
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.number += 1
            if self.number % 1000 == 0:
                self._tick()
            yield line + "\n"

    @property
    def at_end(self) -> bool:
        return self.number == len(self._lines)

    @property
    def current(self) -> str:
        line = self._lines[max(0, self.number - 1)].strip()
        return line if len(line) <= 80 else line[:77] + "..."


def family_name(name: str, kind: SampleKind) -> str:
    """Return the name under which a family is kept: counters always end in ``_total``, whatever the exposition says.

    prometheus_client strips ``_total`` from the names of counter families, OpenMetrics declares them without it, plain
    text with it. Only counters: vLLM has a *histogram* called ``vllm:iteration_tokens_total``.
    """
    return name if kind != "counter" or name.endswith("_total") else f"{name}_total"


def parse_exposition(
    body: bytes, *, content_type: str = "", tick: Callable[[], None] = lambda: None
) -> tuple[list[Sample], dict[str, SampleKind]]:
    """Parse one exposition.

    Args:
        body: what the server sent.
        content_type: its header; decides between OpenMetrics and plain text.
        tick: called now and then, may raise to end a parse that takes too long.

    Returns:
        The samples in order, and the declared families with their kind (families without a sample included).

    Raises:
        ExpositionError: a page of HTML, not an exposition, malformed, truncated, or empty.
    """
    text = _text(body, content_type)
    samples: list[Sample] = []
    families: dict[str, SampleKind] = {}
    last: Metric | None = None
    for metric in _metrics(text, content_type, tick):
        kind = _KINDS.get(metric.type, "unknown")
        families[family_name(metric.name, kind)] = kind
        for raw in metric.samples:
            is_created = raw.name == f"{metric.name}_created"
            samples.append(
                Sample(
                    name=raw.name,
                    labels=dict(raw.labels),
                    value=float(raw.value),
                    kind="gauge" if is_created else kind,
                )
            )
        last = metric
    if not samples:
        raise ExpositionError("an exposition without a single sample")
    if last is not None:
        _check_last_family(last)
    return _without_duplicates(samples), families


def _text(body: bytes, content_type: str) -> str:
    head = body[:512].lstrip().lower()
    if "text/html" in content_type.lower() or head.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<body")):
        raise ExpositionError("a page of HTML, not a Prometheus exposition")
    if not body.strip():
        raise ExpositionError("an empty page")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ExpositionError(f"not UTF-8 text (byte {error.start})") from error
    if head.startswith((b"{", b"[")):
        raise ExpositionError("JSON, not a Prometheus exposition")
    return text


def _metrics(text: str, content_type: str, tick: Callable[[], None]) -> Iterable[Metric]:
    lines = _Lines(text, tick)
    if _OPENMETRICS in content_type.lower():
        from prometheus_client.openmetrics.parser import text_fd_to_metric_families as parse

        if not text.endswith("# EOF\n") and not text.endswith("# EOF"):
            raise ExpositionError(f"truncated: OpenMetrics text without its closing # EOF ({len(text)} characters)")
    else:
        from prometheus_client.parser import text_fd_to_metric_families as parse
    try:
        yield from parse(cast("TextIO", lines))  # type: ignore[no-untyped-call, unused-ignore]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        # The lax parser lets all of these out for text that it did not expect.
        if lines.at_end and not text.endswith("\n"):
            raise ExpositionError(f"truncated in line {lines.number}: {lines.current!r}") from error
        detail = f" ({error})" if str(error) else ""
        raise ExpositionError(
            f"not a Prometheus exposition: line {lines.number} is {lines.current!r}{detail}"
        ) from error
    if not text.endswith("\n") and _OPENMETRICS not in content_type.lower():
        # The format asks for a final line feed; without it the last number may have lost digits.
        raise ExpositionError(f"truncated: the last line has no line feed: {lines.current!r}")


def _check_last_family(metric: Metric) -> None:
    """A page cut between two lines parses; it shows when the last family is a histogram that lacks its end."""
    if metric.type != "histogram":
        return
    ends: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for sample in metric.samples:
        key = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        part = sample.name.removeprefix(metric.name)
        if part == "_bucket" and float(sample.labels.get("le", "nan")) != math.inf:
            part = ""
        ends.setdefault(key, set()).add(part)
    parts = list(ends.values())[-1] if ends else {"_bucket", "_count"}
    for part, what in (("_bucket", "its +Inf bucket"), ("_count", "its _count")):
        if part not in parts:
            raise ExpositionError(f"truncated: the exposition ends inside histogram {metric.name}, before {what}")


def _without_duplicates(samples: list[Sample]) -> list[Sample]:
    seen: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    kept = []
    for sample in samples:
        key = (sample.name, frozenset(sample.labels.items()))
        if key not in seen:
            seen[key] = sample.value
            kept.append(sample)
        elif seen[key] != sample.value and not (math.isnan(seen[key]) and math.isnan(sample.value)):
            raise ExpositionError(
                f"malformed: {sample.name} appears twice with the same labels, as {seen[key]:g} and {sample.value:g}"
            )
    return kept
