"""How much the machine itself moved meanwhile: drift, blocks and boots. Needs numpy: imported lazily only.

A machine that warms up, throttles or boots into another memory layout slows *all* requests of a stretch by some
percent, the many fast ones as well as the few slow ones. The tail has too few values to show it; the bulk shows it
with precision. So the bulk's slow movement is measured, and its variance is added to that of the tail's ratio.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_kvoffload.stats._estimators import FloatArray

_STRETCHES = (3, 4, 5, 6, 8, 12, 16)
"""Numbers of equal stretches that the run is cut into: boots and slow drift show in few, quick drift in many. Two
halves are not among them: one degree of freedom takes more power than it adds truth (measured)."""
_SMALLEST_STRETCH = 20
_ASSUMED_BOOT_SD = 0.03
"""Standard deviation of the log effect of a boot that is assumed when an arm has one boot only: 3 %, in the middle of
what alternating boots of one configuration show. Several boots per arm replace the assumption by a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNoise:
    """Variance that drift, blocks and boots add to a log ratio over the whole run."""

    variance: float = 0.0
    degrees: float = 1.0
    """Degrees of freedom of ``variance``."""
    assumed: bool = False
    """Whether it is an assumption (one boot per arm) and not a measurement."""


def slow_noise(
    series: FloatArray,
    groups: Sequence[Sequence[Hashable]] = (),
) -> SlowNoise:
    """Return the slow variance of the mean of ``series`` (log ratios of pairs, or one arm's logs, in request order).

    For each way of cutting the run into stretches: the variance between the stretches' medians, less what the
    scatter inside them explains (median of normal scatter: pi/2 * s**2 / n, s from the interquartile range), over the
    number of stretches: the method of batch means (Conway 1963; Law and Kelton, "Simulation Modeling and Analysis",
    section 9.5). The largest over all cuts is kept, since an uneven cut can only miss variance.

    Args:
        series: one value per request, in request order.
        groups: labels per request, such as blocks or boots; each is one more way of cutting.
    """
    found = SlowNoise()
    n = len(series)
    for count in _STRETCHES:
        size = n // count
        if size < _SMALLEST_STRETCH:
            break
        found = _larger(found, np.sort(series[: size * count].reshape(count, size), axis=1))
    for labels in groups:
        found = _larger_of_groups(found, series, labels)
    return found


def single_boot(labels: Sequence[Hashable]) -> bool:
    """Whether all requests of an arm come from one boot."""
    return len(set(labels)) == 1


def assumed_boot(arms: int) -> SlowNoise:
    """Return the variance that is assumed for ``arms`` arms of one boot each."""
    return SlowNoise(variance=arms * _ASSUMED_BOOT_SD**2, degrees=float("inf"), assumed=True)


def add(first: SlowNoise, second: SlowNoise) -> SlowNoise:
    """Add two independent noises; degrees of freedom after Satterthwaite (1946)."""
    variance = first.variance + second.variance
    spread = first.variance**2 / first.degrees + second.variance**2 / second.degrees
    degrees = variance**2 / spread if spread > 0.0 else max(first.degrees, second.degrees)
    return SlowNoise(variance=variance, degrees=degrees, assumed=first.assumed or second.assumed)


def _larger(found: SlowNoise, stretches: FloatArray) -> SlowNoise:
    count, size = stretches.shape
    degrees = count - 1
    medians = (stretches[:, (size - 1) // 2] + stretches[:, size // 2]) / 2
    scatter = (stretches[:, (3 * size) // 4] - stretches[:, size // 4]) / 1.349
    inside = float((scatter**2).mean()) * np.pi / 2 / size
    variance = float(medians.var(ddof=1) - inside) / count
    return SlowNoise(variance=variance, degrees=degrees) if variance > found.variance else found


def _larger_of_groups(found: SlowNoise, series: FloatArray, labels: Sequence[Hashable]) -> SlowNoise:
    # Blocks of a few requests have no median worth the name: runs of neighbouring blocks stand in for them, which is
    # what the equal stretches above already are.
    order: dict[Hashable, list[int]] = {}
    for position, label in enumerate(labels):
        order.setdefault(label, []).append(position)
    parts = [np.sort(series[rows]) for rows in order.values()]
    if len(parts) < 2 or min(map(len, parts)) < _SMALLEST_STRETCH:
        return found
    medians = np.array([np.median(part) for part in parts])
    inside = np.mean([((part[(3 * len(part)) // 4] - part[len(part) // 4]) / 1.349) ** 2 / len(part) for part in parts])
    weights = np.array([len(part) for part in parts]) / len(series)
    # Unequal groups: the mean over requests weights each group's effect by its share.
    degrees = len(parts) - 1
    variance = float(medians.var(ddof=1) - inside * np.pi / 2) * float((weights**2).sum())
    return SlowNoise(variance=variance, degrees=degrees) if variance > found.variance else found
