"""The whole checklist in one: is there reuse, does the median fall, is the tail bounded?"""

from __future__ import annotations

from fractions import Fraction
from math import comb

from pytest_kvoffload.assertions.diagnosis import why_long_tail, why_no_hits, why_not_faster
from pytest_kvoffload.assertions.evidence import Case, number, open_case, pairs, quantile_name, rounding
from pytest_kvoffload.assertions.latency import MINIMUM_PAIRS, speedups
from pytest_kvoffload.metrics.hit_rate import HitRate, hit_rate
from pytest_kvoffload.records import Measurement
from pytest_kvoffload.stats import quantile, smallest_n

__tracebackhide__ = True  # pytest shows the line of the test, not ours

TAIL_QUANTILES = (0.99, 0.95, 0.9, 0.75)
"""The tail is judged at the highest of these that the samples carry."""


def assert_offload_helps(
    measurement: Measurement,
    control: Measurement | None = None,
    *,
    min_hit_rate: float = 0.1,
    min_gain: float = 0.05,
    tail_factor: float = 1.25,
    tail_slack_seconds: float = 0.05,
    phase: str = "restored",
) -> None:
    """Assert that the tier is worth having: reuse exists, the median falls, the tail is bounded.

    1. Reuse: at least ``min_hit_rate`` of the prompt tokens of ``phase`` came through the connector.
    2. Median: over equal requests, the median of (with tier / without) is at most ``1 - min_gain``, and the share of
       requests that became faster is more than chance (one-sided sign test at 5 %).
    3. Tail: the highest of p99, p95, p90 and p75 that the samples carry is at most ``tail_factor`` times that of the
       control, plus ``tail_slack_seconds``.

    Without reuse and without equal requests to compare (traffic that asks nothing twice) only the first is judged.

    Without a control the same requests' cold pass stands for "without", which includes the cost of storing and is
    thus the weaker test.

    Args:
        measurement: the arm with the tier.
        control: the arm without (recompute), on the same workload and seed.
        min_hit_rate: reuse that counts as such.
        min_gain: gain that counts as such, as a share.
        tail_factor: how much longer the tail may be.
        tail_slack_seconds: absolute allowance for the tail.
        phase: ``restored`` by default.

    Raises:
        MeterAssertionError: ``tier-not-exercised`` or ``violated``; says which of the three failed and what to do.
    """
    name = "assert_offload_helps"
    case = open_case(name, measurement, phase)
    other = open_case(name, control, phase) if control is not None else open_case(name, measurement, "cold")
    checks = [_reuse(case, min_hit_rate)]
    if checks[0][1] or len(pairs(case.phase, other.phase)) >= MINIMUM_PAIRS:
        ratios = [1 / ratio for ratio in speedups(case, other)]
        checks.append(_median(case, other, ratios, min_gain))
        checks.append(_tail(case, other, tail_factor, tail_slack_seconds))
    failed = [check for check in checks if not check[1]]
    if not failed:
        return
    rows = {label: ("holds: " if holds else "FAILS: ") + text for label, holds, text, _ in checks}
    if not checks[0][1]:
        rows["rounding"] = rounding(measurement, "a tier serves whole chunks")
    names = " and ".join(label for label, _, _, _ in failed)
    external = case.meters.hit_tokens["external"].value or 0.0
    case.fail(
        "tier-not-exercised" if external == 0 else "violated",
        f"the tier of {measurement.arm!r} does not help: {names} failed ({len(checks) - len(failed)} of "
        f"{len(checks)} hold)",
        rows,
        # Without reuse the other two say nothing about the tier: their advice would only distract.
        advice=tuple(text for _, _, _, advice in (failed[:1] if not checks[0][1] else failed) for text in advice),
    )


Check = tuple[str, bool, str, tuple[str, ...]]


def _reuse(case: Case, least: float) -> Check:
    found = hit_rate(case.meters, "external")
    if not isinstance(found, HitRate):
        case.fail("metric-absent", str(found), {"metric": found.metric})
    text = (
        f"{found.rate:.3f} of prompt tokens came through the connector ({number(found.hit_tokens)} of "
        f"{number(found.prompt_tokens)}), at least {least:g} asked"
    )
    return "reuse", found.rate >= least and found.hit_tokens > 0, text, why_no_hits(case.measurement, case.phase)


def _median(case: Case, other: Case, ratios: list[float], gain: float) -> Check:
    middle, faster, n = quantile(ratios, 0.5), sum(ratio < 1 for ratio in ratios), len(ratios)
    chance = sign_probability(faster, n)
    text = (
        f"{quantile(case.times, 0.5):.4f} s against {quantile(other.times, 0.5):.4f} s in "
        f"{other.measurement.arm}/{other.name}; over {n} equal requests the median ratio is {middle:.3f} (at most "
        f"{1 - gain:g} asked), {faster} of {n} became faster (by chance with probability {chance:.2g}, at most 0.05)"
    )
    holds = middle <= 1 - gain and chance <= 0.05
    return "median", holds, text, why_not_faster(case.measurement, case.phase)


def _tail(case: Case, other: Case, factor: float, slack: float) -> Check:
    n = min(len(case.times), len(other.times))
    q = next((q for q in TAIL_QUANTILES if n >= smallest_n(q)), TAIL_QUANTILES[-1])
    value, base = quantile(case.times, q), quantile(other.times, q)
    limit = base * factor + slack
    text = (
        f"{quantile_name(q)} {value:.4f} s against {base:.4f} s ({n} samples carry a {quantile_name(q)}), at most "
        f"{limit:.4f} s asked ({factor:g} times that + {slack:g} s)"
    )
    return "tail", value <= limit, text, why_long_tail(case.measurement, case.phase)


def sign_probability(successes: int, n: int) -> float:
    """Return the chance of at least ``successes`` heads in ``n`` fair tosses: the one-sided sign test, exactly."""
    return float(Fraction(sum(comb(n, k) for k in range(successes, n + 1)), 2**n))
