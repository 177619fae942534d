"""How much the machine itself moved meanwhile: drift, blocks and boots. Needs numpy: imported lazily only.

A machine that warms up, throttles or boots into another memory layout slows *all* requests of a stretch by some
percent, the many fast ones as well as the few slow ones. The tail has too few values to show it; the bulk shows it
with precision. So the bulk's slow movement is measured, and its variance is added to that of the tail's ratio.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_kvoffload.stats._estimators import FloatArray

_STRETCHES = (3, 4, 5, 6, 8, 12, 16)
"""Numbers of equal stretches that the run is cut into: boots and slow drift show in few, quick drift in many. Two
halves are not among them: one degree of freedom takes more power than it adds truth (measured)."""
_SMALLEST_STRETCH = 20
_TRIM = 0.2
"""Share cut off each end of a stretch before its mean is taken: far more than the tail, which must not count."""
_ASSUMED_BOOT_SD = 0.03
"""Standard deviation of the log effect of a boot that is assumed when an arm has one boot only: 3 %, in the middle of
what alternating boots of one configuration show. Several boots per arm replace the assumption by a measurement."""
_LEAST_SD = 0.01
"""Standard deviation that drift and boots add at least: two or three boots, or one boot without labels, look alike by
chance often enough that a measured zero is no proof of it."""


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

    For each way of cutting the run into stretches: the variance between the stretches' trimmed means, less what the
    scatter inside them explains (the variance of a trimmed mean from the winsorized sample: Tukey and McLaughlin 1963,
    Sankhya A 25), over the number of stretches: the method of batch means (Conway 1963; Law and Kelton, "Simulation
    Modeling and Analysis", section 9.5). The largest over all cuts is kept, since an uneven cut can only miss variance.

    Args:
        series: one value per request, in request order.
        groups: labels per request, such as blocks or boots; each is one more way of cutting.
    """
    n = len(series)
    found = SlowNoise()
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


def at_least(noise: SlowNoise) -> SlowNoise:
    """Return the noise, raised to the least that is believed; what was added is assumed and has no scatter."""
    if noise.variance >= _LEAST_SD**2:
        return noise
    measured = noise.variance**2 / noise.degrees
    degrees = _LEAST_SD**4 / measured if measured > 0.0 else float("inf")
    return replace(noise, variance=_LEAST_SD**2, degrees=degrees)


def add(first: SlowNoise, second: SlowNoise) -> SlowNoise:
    """Add two independent noises; degrees of freedom after Satterthwaite (1946)."""
    variance = first.variance + second.variance
    spread = first.variance**2 / first.degrees + second.variance**2 / second.degrees
    degrees = variance**2 / spread if spread > 0.0 else max(first.degrees, second.degrees)
    return SlowNoise(variance=variance, degrees=degrees, assumed=first.assumed or second.assumed)


def _larger(found: SlowNoise, stretches: FloatArray) -> SlowNoise:
    count = len(stretches)
    centres, insides = _centres(stretches)
    variance = float(centres.var(ddof=1) - insides.mean()) / count
    return SlowNoise(variance=variance, degrees=count - 1) if variance > found.variance else found


def _larger_of_groups(found: SlowNoise, series: FloatArray, labels: Sequence[Hashable]) -> SlowNoise:
    # Blocks of a few requests have no middle worth the name: runs of neighbouring blocks stand in for them, which is
    # what the equal stretches above already are.
    order: dict[Hashable, list[int]] = {}
    for position, label in enumerate(labels):
        order.setdefault(label, []).append(position)
    if len(order) < 2 or min(map(len, order.values())) < _SMALLEST_STRETCH:
        return found
    parts = [_centres(np.sort(series[rows])[np.newaxis]) for rows in order.values()]
    centres, insides = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    weights = np.array([len(rows) for rows in order.values()]) / len(series)
    # Unequal groups: the mean over requests weights each group's effect by its share.
    variance = float(centres.var(ddof=1) - insides.mean()) * float((weights**2).sum())
    return SlowNoise(variance=variance, degrees=len(parts) - 1) if variance > found.variance else found


def _centres(ordered: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the trimmed mean of each sorted row and the variance that the scatter inside the row gives it."""
    size = ordered.shape[1]
    cut = int(_TRIM * size)
    kept = ordered[:, cut : size - cut]
    winsorized = np.clip(ordered, kept[:, :1], kept[:, -1:])
    return kept.mean(axis=1), winsorized.var(axis=1, ddof=1) / ((1.0 - 2.0 * cut / size) ** 2 * size)
