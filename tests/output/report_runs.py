"""Runs to report on: large, small and hostile."""

from __future__ import annotations

import dataclasses
import html.parser
from collections.abc import Sequence

from factories import control, delta, good, measurement, phase

from pytest_kvoffload.output.report import RunDocument
from pytest_kvoffload.records import Measurement

HOSTILE = "<script>alert(1)</script>\x1b[31mred\x1b[0m\x07 \u202eabc\u2066 " + "x" * 5000


def large(n: int = 100_000) -> RunDocument:
    """A run of n requests: half in each of two arms."""
    half = n // 4
    times = [0.05 + 0.0001 * (i * 7919 % 1000) + (2.0 if i % 997 == 0 else 0.0) for i in range(half)]
    arms = [
        measurement(phase("cold", [2 * t for t in times]), phase("restored", times), arm=arm, kind=kind)
        for arm, kind in (("control", "recompute"), ("native", "native"))
    ]
    return RunDocument(measurements=tuple(arms))


def single() -> RunDocument:
    """A run of one request."""
    return RunDocument(measurements=(measurement(phase("cold", [0.25], delta(connector=False)), arm="only"),))


def both() -> RunDocument:
    """A control and a tier that helps."""
    return RunDocument(measurements=(control(), good()), outcome="pass", verdict="The tier helps.")


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
        failures=((HOSTILE, HOSTILE),),
        problems=(HOSTILE,),
        sources=(HOSTILE,),
        command=HOSTILE,
    )


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
