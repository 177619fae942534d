"""The noise floor of a runner: what two runs of the same thing differ by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_kvoffload.stats._checks import positive_list, probability, require
from pytest_kvoffload.stats.quantiles import quantile as sample_quantile
from pytest_kvoffload.stats.quantiles import smallest_n

_FEWEST_RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """What A against A differs by on one runner, for one quantile."""

    margin: float
    """The floor, as a share: a comparison of one configuration with itself exceeds it with probability at most
    ``1 - confidence``. A gate's margin must not lie below."""
    observed: float
    """The largest difference between any two of the runs, as a share."""
    run_sd: float
    """Standard deviation of a run's log quantile."""
    runs: int
    n: int
    """Requests of the smallest run."""
    quantile: float
    confidence: float
    boots_per_arm: int
    explanation: str


def noise_floor(
    runs: Sequence[Iterable[float]],
    quantile: float = 0.99,
    *,
    confidence: float = 0.95,
    boots_per_arm: int = 1,
) -> NoiseFloor:
    """Return the smallest margin that A against A does not exceed, from runs of A over several boots.

    With s the standard deviation of the runs' log quantiles, the log ratio of two future arms of ``boots_per_arm``
    boots each lies below ``t * s * sqrt(2 / boots_per_arm)`` with the confidence asked for, t being Student's
    quantile with ``runs - 1`` degrees of freedom: the prediction limit for a difference of means (Hahn and Meeker,
    "Statistical Intervals", section 4.8). Boot, drift and sampling noise are all in s, because each run has its own.

    Args:
        runs: latencies in seconds of each run, one boot each, all of the same configuration and workload.
        quantile: strictly between 0 and 1.
        confidence: strictly between 0 and 1, one-sided.
        boots_per_arm: boots that an arm of the gate will have.

    Raises:
        ValueError: fewer than 3 runs, a run too short for the quantile, a latency that is no positive number, or an
            argument out of range.
        MissingExtraError: scipy is not installed.
    """
    probability(quantile, "quantile")
    probability(confidence, "confidence")
    if boots_per_arm < 1:
        raise ValueError(f"boots_per_arm is {boots_per_arm}: an arm has at least one boot")
    if len(runs) < _FEWEST_RUNS:
        raise ValueError(f"{len(runs)} runs cannot show how much runs differ: at least {_FEWEST_RUNS} are needed")
    fewest = smallest_n(quantile)
    logs, sizes = [], []
    for position, run in enumerate(runs):
        values = positive_list(run, f"runs[{position}]")
        if len(values) < fewest:
            raise ValueError(
                f"runs[{position}] has {len(values)} requests, which cannot carry a p{quantile * 100:g}:"
                f" at least {fewest} are needed"
            )
        sizes.append(len(values))
        logs.append(math.log(sample_quantile(values, quantile)))
    special = require("scipy.special", "the noise floor")
    mean = math.fsum(logs) / len(logs)
    run_sd = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
    t = float(special.stdtrit(len(logs) - 1, confidence))
    margin = math.expm1(t * run_sd * math.sqrt(2.0 / boots_per_arm))
    observed = math.expm1(max(logs) - min(logs))
    return NoiseFloor(
        margin=margin,
        observed=observed,
        run_sd=run_sd,
        runs=len(logs),
        n=min(sizes),
        quantile=quantile,
        confidence=confidence,
        boots_per_arm=boots_per_arm,
        explanation=(
            f"p{quantile * 100:g} of {len(logs)} runs of the same configuration scatters by {run_sd:.1%} (1 sd), at"
            f" most {observed:.1%} between two runs; A against A stays within {margin:.1%} with {confidence:.0%}"
            f" confidence at {boots_per_arm} boot{'s' if boots_per_arm > 1 else ''} per arm"
        ),
    )
