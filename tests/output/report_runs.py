"""Runs to report on: large, small and hostile."""

from __future__ import annotations

import dataclasses
import functools
import html.parser
from collections.abc import Callable, Sequence

from factories import PREFIX, PROMPT, SYNC, control, delta, good, histogram, measurement, phase

from pytest_kvoffload.output.report import RunDocument, render_page
from pytest_kvoffload.output.report.document import CheckLine, Failure, Finding, TailNumbers
from pytest_kvoffload.records import DeltaSample, Measurement, RequestSample

HOSTILE = "<script>alert(1)</script>\x1b[31mred\x1b[0m\x07 \u202eabc\u2066 " + "x" * 5000


def large(n: int = 100_000) -> RunDocument:
    """A run of n requests: half in each of two arms, 50 a second, one in 997 very slow, the tier filling slowly."""
    half = n // 4
    times = [0.05 + 0.0001 * (i * 7919 % 1000) + (2.0 if i % 997 == 0 else 0.0) for i in range(half)]
    arms = []
    for arm, kind, slow in (("control", "recompute", 1.9), ("native", "native", 1.0)):
        asked = delta(prompt_tokens=PROMPT * half, external=PREFIX * half * 0.6 if kind == "native" else 0)
        made = measurement(
            phase("cold", [2 * t for t in times]),
            phase("restored", [slow * t for t in times], asked),
            arm=arm,
            kind=kind,
        )
        phases = tuple(
            dataclasses.replace(p, samples=_spread(p.samples, hits=p.name == "restored" and kind == "native"))
            for p in made.phases
        )
        arms.append(dataclasses.replace(made, phases=phases))
    return RunDocument(measurements=tuple(arms))


def _spread(samples: Sequence[RequestSample], *, hits: bool) -> tuple[RequestSample, ...]:
    """Requests sent one after the other; the tier serves ever more of them."""
    return tuple(
        dataclasses.replace(
            s,
            sent_at_seconds=s.index / 50,
            first_token_at_seconds=s.index / 50 + (s.ttft_seconds or 0.0),
            cached_tokens=PREFIX if hits and s.index * 7919 % 1000 < 1000 * s.index / len(samples) else 0,
        )
        for s in samples
    )


def single() -> RunDocument:
    """A run of one request."""
    return RunDocument(measurements=(measurement(phase("cold", [0.25], delta(connector=False)), arm="only"),))


def both() -> RunDocument:
    """A control and a tier that helps."""
    return RunDocument(measurements=(control(), good()), outcome="pass", verdict="The tier helps.")


def gate_run(blocks: int = 4, n: int = 30) -> RunDocument:
    """A gate's run that failed: two arms of several blocks, with everything that a server can tell."""
    found = []
    for seed in range(blocks):
        for arm, slow, size in (("reference", 1.0, 2), ("candidate", 1.7, 1)):
            found.append(_block(arm, seed=seed, n=n, slow=slow, size_gib=size))
    numbers = TailNumbers(
        reference_seconds=0.0314,
        candidate_seconds=0.0532,
        ratio=1.687,
        low=1.445,
        high=None,
        margin=0.1,
        n=blocks * n,
        p_value=1.2e-6,
    )
    name = "ttft_p99 regression < 10%"
    return RunDocument(
        measurements=tuple(found),
        outcome="fail",
        verdict="candidate against reference: fail",
        findings=(
            Finding(name="tier exercised", outcome="pass", text="the candidate's tier served the phase"),
            Finding(name=name, outcome="fail", text="p99 53.2 ms against 31.4 ms", tail=numbers),
        ),
        facts=("requests per arm: 120; boots per arm: 2",),
        checks=(
            CheckLine(arm="candidate", kind="preflight", name="shm", outcome="ok", text="12 GiB free"),
            CheckLine(arm="candidate", kind="lint", name="KVO101 a-rule", outcome="warning", text="write it so"),
        ),
        sources=("run",),
        reference="reference",
        candidate="candidate",
        command="kvoffload gate --candidate changed",
    )


def _block(arm: str, *, seed: int, n: int, slow: float, size_gib: int) -> Measurement:
    """A block of a gate's run, its requests all different."""
    cold = [0.042 + 0.0005 * ((i * 7 + seed) % 11) for i in range(n)]
    back = [slow * (0.023 + 0.0007 * ((i * 5 + seed) % 9) + 1e-6 * (i + n * seed)) for i in range(n)]
    asked = PROMPT * n
    lookups = histogram(SYNC, {1e-5: 0.0, 5e-5: n - 1.0, 1e-4: float(n)}, 3e-5 * n)
    usage = DeltaSample(
        name="vllm:kv_cache_usage_perc", labels={"engine": "0"}, kind="gauge", before=0.0, after=0.1, increment=0.1
    )
    counted = _counter("vllm:kv_offload_load_size_count", n)
    met = measurement(
        phase("cold", cold, delta(prompt_tokens=asked, store_bytes=2.0**20 * n, store_time=0.01 * n, rows=[usage])),
        phase(
            "restored",
            back,
            delta(
                prompt_tokens=asked,
                external=PREFIX * n,
                load_bytes=2.0**20 * n,
                load_time=0.003 * n,
                rows=[*lookups, usage, counted],
            ),
        ),
        arm=arm,
        extra={"cpu_bytes_to_use": size_gib * 2**30},
        seed=seed,
    )
    phases = tuple(
        dataclasses.replace(
            p,
            samples=tuple(
                dataclasses.replace(
                    s,
                    sent_at_seconds=0.1 * s.index,
                    first_token_at_seconds=0.1 * s.index + (s.ttft_seconds or 0.0),
                    cached_tokens=0 if p.name == "cold" else PREFIX,
                )
                for s in p.samples
            ),
        )
        for p in met.phases
    )
    connector = dataclasses.replace(met.connector, options={"size_gib": size_gib})
    return dataclasses.replace(met, phases=phases, connector=connector)


def _counter(name: str, value: float) -> DeltaSample:
    return DeltaSample(name=name, labels={"engine": "0"}, kind="counter", before=0.0, after=value, increment=value)


def failed_boot() -> RunDocument:
    """A run whose only server did not start."""
    text = (
        "the server did not start: no room in /dev/shm\n  what to do: mount a larger one\n  command: vllm serve m\n"
        "  log: /runs/server.log\n  last lines:\n    RuntimeError: no space left"
    )
    log = "ERROR 01-01 00:00:00 RuntimeError: no space left on device"
    return RunDocument(failures=(Failure(name="native-1a2b3c", text=text, log=log),), sources=("run",))


def hostile() -> RunDocument:
    """A run whose every text tries to break the page."""
    bad = good(arm=HOSTILE, notes=(HOSTILE,))
    phases = tuple(dataclasses.replace(p, notes=(HOSTILE,), name=p.name + HOSTILE) for p in bad.phases)
    samples = (dataclasses.replace(phases[0].samples[0], error=HOSTILE), *phases[0].samples[1:])
    phases = (dataclasses.replace(phases[0], samples=samples), *phases[1:])
    server = dataclasses.replace(
        bad.server, model=HOSTILE, command=("vllm", HOSTILE), environment={"A": HOSTILE}, differences=(HOSTILE,)
    )
    hurt: Measurement = dataclasses.replace(
        bad, phases=phases, server=server, environment={HOSTILE: HOSTILE}, artefacts={HOSTILE: HOSTILE}
    )
    return RunDocument(
        measurements=(hurt, control()),
        outcome="fail",
        verdict=HOSTILE,
        notes=(HOSTILE,),
        failures=(Failure(name=HOSTILE, text=HOSTILE, log=HOSTILE),),
        problems=(HOSTILE,),
        sources=(HOSTILE,),
        command=HOSTILE,
    )


@functools.cache
def rendered(document: Callable[[], RunDocument]) -> bytes:
    """Every page is rendered once for all the ways to look at it."""
    return render_page(document())


class Page(html.parser.HTMLParser):
    """The tags, identifiers and texts of a page, scripts kept apart."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        """Remember a tag."""
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Check that what closes is what was opened."""
        assert self.open.pop() == tag
        if tag in {"td", "th", "dt", "li", "p"} and not (self.open and self.open[-1] == "script"):
            self.texts.append(" ")

    def handle_data(self, data: str) -> None:
        """Remember a text by where it stands."""
        (self.scripts if self.open and self.open[-1] == "script" else self.texts).append(data)

    @property
    def text(self) -> str:
        """All text outside scripts."""
        return "".join(self.texts)

    @property
    def ids(self) -> list[str]:
        """All identifiers."""
        return [str(attrs["id"]) for _, attrs in self.tags if "id" in attrs]
