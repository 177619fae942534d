"""Every kind of threshold, kept, broken and undecided."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from pytest_kvoffload.gate.evaluate import Level
from pytest_kvoffload.gate.judge import judge
from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.gate.thresholds import parse_thresholds
from pytest_kvoffload.gate.verdict import Finding, Policy
from pytest_kvoffload.records import Measurement

N = 600
LEVEL = Level(alpha=0.01, confidence=0.95)
MakeBlocks = Callable[..., list[Block]]


def times(scale: float = 1.0, *, seed: int = 1, n: int = N) -> list[float]:
    source = random.Random(seed)
    return [scale * 0.06 * source.lognormvariate(0.0, 0.25) for _ in range(n)]


def ask(
    text: str | tuple[str, ...], candidate: list[Block], reference: list[Block], **others: list[Block]
) -> dict[str, Finding]:
    texts = (text,) if isinstance(text, str) else text
    found = judge(reference, candidate, policy=Policy(), thresholds=parse_thresholds(texts), others=others, level=LEVEL)
    return {finding.name: finding for finding in found}


@pytest.mark.parametrize(
    ("text", "outcome", "word"),
    [
        ("ttft_p99 < 1.5s", "pass", "the quantile keeps the bound"),
        ("ttft_p99 < 60ms", "fail", "too many (p ="),
        ("restored.ttft_p50 <= 1s", "pass", "0 beyond 1000 ms"),
        ("e2e_p50 < 10ms", "fail", "restored.e2e_p50"),
        ("ttft_p99.9 < 1.5s", "inconclusive", "2995 requests are needed even when none is beyond it"),
        ("tpot_p50 < 10ms", "inconclusive", "has no tpot: it generated 1 tokens"),
    ],
)
def test_absolute_latencies(make_blocks: MakeBlocks, text: str, outcome: str, word: str) -> None:
    same = times()
    found = ask(text, make_blocks(same, name="candidate"), make_blocks(same, name="reference"))[text]
    assert (found.outcome, word in found.text) == (outcome, True), found.text


@pytest.mark.parametrize(
    ("text", "outcome", "word"),
    [
        ("restored.external.hit_rate >= 0.6", "pass", "restored.external.hit_rate 0."),
        ("restored.external.hit_rate >= 0.99", "fail", "asked for >= 0.99"),
        ("cold.hit_rate >= 0.5", "fail", "cold.hit_rate 0"),
        ("restored.lmcache_l1.hit_rate >= 0.1", "inconclusive", "no hit rate of tier lmcache_l1"),
        ("failed_requests <= 0", "pass", "restored.failed_requests 0"),
        ("resident.hit_rate >= 0.1", "pass", "resident.hit_rate 0."),
        ("hit_rate regression < 5%", "pass", "of reference"),
        ("preemptions regression < 10%", "pass", "preemptions 0 against 0"),
    ],
)
def test_counts_are_judged_as_they_stand(make_blocks: MakeBlocks, text: str, outcome: str, word: str) -> None:
    same = times(n=60)
    found = ask(text, make_blocks(same, name="candidate"), make_blocks(same, name="reference"))[text]
    assert (found.outcome, word in found.text) == (outcome, True), found.text


def test_a_phase_that_was_not_run_is_no_pass(make_blocks: MakeBlocks) -> None:
    blocks = []
    for block in make_blocks(times(n=60), name="candidate"):
        phases = tuple(p for p in block.measurement.phases if p.name != "resident")
        blocks.append(dataclasses.replace(block, measurement=dataclasses.replace(block.measurement, phases=phases)))
    found = ask("resident.hit_rate >= 0.1", blocks, blocks)["resident.hit_rate >= 0.1"]
    assert found.outcome == "inconclusive"
    assert found.text == "candidate has no phase 'resident' (there is cold, restored)"


def test_a_hit_rate_that_fell_is_a_regression(make_blocks: MakeBlocks, recomputing: Measurement) -> None:
    """An arm without a tier has lost every hit of the other; the other has gained all of them."""
    with_tier = make_blocks(times(n=60), name="reference")
    without = make_blocks(times(n=60), name="control", of=recomputing)
    loss, gain = "hit_rate regression over tier < 5%", "hit_rate gain over control >= 30%"
    assert ask(loss, without, without, tier=with_tier)[loss].outcome == "fail"
    assert ask(gain, with_tier, with_tier, control=without)[gain].outcome == "pass"
    assert ask(gain, without, without, control=without)[gain].outcome == "inconclusive"


@pytest.mark.parametrize(
    ("text", "scale", "outcome", "word"),
    [
        ("ttft_p99 regression < 10%", 1.0, "pass", "ratio"),
        ("ttft_p99 regression < 10%", 1.5, "fail", "ratio"),
        ("ttft_p99 regression < 10% or 200ms", 1.5, "pass", "the margin is the floor of 200 ms"),
        ("ttft_p50 regression < 10%", 1.3, "fail", "p50"),
    ],
)
def test_regressions(make_blocks: MakeBlocks, text: str, scale: float, outcome: str, word: str) -> None:
    noise = random.Random(9)
    before = times()
    after = [t * scale * noise.lognormvariate(0.0, 0.01) for t in before]
    found = ask(text, make_blocks(after, name="candidate"), make_blocks(before, name="reference"))[text]
    assert (found.outcome, word in found.text) == (outcome, True), found.text


@pytest.mark.parametrize(("scale", "outcome"), [(2.0, "pass"), (1.05, "fail")])
def test_gain_over_the_control(make_blocks: MakeBlocks, recomputing: Measurement, scale: float, outcome: str) -> None:
    text = "ttft_p50 gain over control >= 30%"
    base = times()
    noise = random.Random(9)
    slow = [t * scale * noise.lognormvariate(0.0, 0.01) for t in base]
    candidate = make_blocks(base, name="candidate")
    control = make_blocks(slow, name="control", of=recomputing)
    found = ask(text, candidate, candidate, control=control)[text]
    assert found.outcome == outcome, found.text
    assert f"a gain of {(1 - 1 / scale) * 100:.1f}"[:12] in found.text


def test_an_arm_that_was_not_measured_or_is_unlike_is_no_pass(
    make_blocks: MakeBlocks, recomputing: Measurement
) -> None:
    text = "ttft_p50 gain over control >= 30%"
    candidate = make_blocks(times(n=60), name="candidate")
    assert ask(text, candidate, candidate)[text].text == "no arm control was measured in this run"
    server = dataclasses.replace(recomputing.server, model="another")
    other = make_blocks(times(n=60), name="control", of=dataclasses.replace(recomputing, server=server))
    found = ask(text, candidate, candidate, control=other)[text]
    assert found.outcome == "inconclusive"
    assert "no comparison with control: model: another on control, fake-model on the candidate" in found.text


def test_a_family_of_thresholds_shares_its_error(make_blocks: MakeBlocks) -> None:
    """A failure that alone is just significant is held back among many innocent ones."""
    values = [0.02] * N
    for place in range(14):  # p = 0.0028 against p99 of 600: alone a failure at 1 %, not among five tests
        values[place * 40] = 0.1
    blocks = make_blocks(values, name="candidate")
    alone = ask("ttft_p99 < 50ms", blocks, blocks)["ttft_p99 < 50ms"]
    assert alone.outcome == "fail", alone.text
    family = ("ttft_p99 < 50ms", "ttft_p50 < 1s", "ttft_p95 < 1s", "ttft_p90 < 1s", "e2e_p50 < 1s")
    found = ask(family, blocks, blocks)
    assert found["ttft_p99 < 50ms"].outcome == "inconclusive"
    assert "held back: among 5 tests its p counts as" in found["ttft_p99 < 50ms"].text
    assert found["ttft_p50 < 1s"].outcome == "pass"
