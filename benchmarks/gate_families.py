"""Generators of latency tails for the gate's simulation: what a cache, a machine and a change do to them.

Each family draws many experiments at once: arrays of shape (runs, n), seconds in request order, one row an experiment,
the same request in the same column of both arms. ``factor`` is by how much the candidate's tail is slower. Where not
said otherwise a request is slow or fast by its own nature in both arms (a log-normal of standard deviation 0.35), and
each arm adds noise of its own (0.15).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import signal, stats

Rng = np.random.Generator
Array = NDArray[np.float64]
Draw = Callable[[Rng, int, int, float], tuple[Array, Array]]

HIT_SECONDS, MISS_SECONDS = 0.060, 0.300
NATURE, NOISE = 0.35, 0.15
BOOT_SD = 0.03
TAIL = 0.95
"""The candidate's values beyond this quantile are slower by the factor; all below is unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One way that latencies come about."""

    name: str
    draw: Draw
    what: str
    boots: int | None = None
    """Number of boots whose labels the gate is told, ``None`` for no labels."""
    factors: tuple[float, ...] = (1.0, 1.1, 1.25, 1.5)

    def labels(self, n: int) -> list[int] | None:
        """Return the boot of each request, ``None`` when the gate is not told."""
        return None if self.boots is None else [position * self.boots // n for position in range(n)]


def slow_tail(values: Array, threshold: float, factor: float) -> Array:
    """Multiply what lies beyond the threshold."""
    return np.where(values > threshold, values * factor, values)


def mixture(
    *, rate: float = 0.05, candidate_rate: float | None = None, same: bool = True, noise: float = NOISE
) -> Draw:
    """Cache hits and misses; the candidate's misses are slower by the factor, or there are more of them."""

    def draw(rng: Rng, runs: int, n: int, factor: float) -> tuple[Array, Array]:
        first = rng.random((runs, n))
        second = first if same else rng.random((runs, n))
        miss_r, miss_c = first < rate, second < (candidate_rate or rate)
        r = np.where(miss_r, MISS_SECONDS, HIT_SECONDS) * _lognormal(rng, runs, n, noise)
        c = np.where(miss_c, MISS_SECONDS * factor, HIT_SECONDS) * _lognormal(rng, runs, n, noise)
        return r, c

    return draw


def own_nature(*, nature: float = NATURE, noise: float = NOISE) -> Draw:
    """Log-normal requests that share a component between the arms."""
    threshold = HIT_SECONDS * float(np.exp(np.hypot(nature, noise) * stats.norm.ppf(TAIL)))

    def draw(rng: Rng, runs: int, n: int, factor: float) -> tuple[Array, Array]:
        base = HIT_SECONDS * _lognormal(rng, runs, n, nature)
        r, c = base * _lognormal(rng, runs, n, noise), base * _lognormal(rng, runs, n, noise)
        return r, slow_tail(c, threshold, factor)

    return draw


def pareto(*, shape: float = 3.0, noise: float = NOISE) -> Draw:
    """Pareto requests that share their size between the arms."""
    # The quantile of Pareto times log-normal is taken from a large sample of fixed seed.
    fixed = np.random.default_rng(20_260_101)
    sample = HIT_SECONDS * (1.0 + fixed.pareto(shape, 2_000_000)) * np.exp(noise * fixed.standard_normal(2_000_000))
    threshold = float(np.quantile(sample, TAIL))

    def draw(rng: Rng, runs: int, n: int, factor: float) -> tuple[Array, Array]:
        base = HIT_SECONDS * (1.0 + rng.pareto(shape, (runs, n)))
        r, c = base * _lognormal(rng, runs, n, noise), base * _lognormal(rng, runs, n, noise)
        return r, slow_tail(c, threshold, factor)

    return draw


def drifting(inner: Draw, *, sd: float = 0.05, persistence: float = 0.8, block: int = 20) -> Draw:
    """A machine whose speed wanders from block to block, AR(1); the arms' blocks alternate A B B A."""

    def draw(rng: Rng, runs: int, n: int, factor: float) -> tuple[Array, Array]:
        r, c = inner(rng, runs, n, factor)
        slots = 2 * (-(-n // block) + 1)
        shocks = rng.standard_normal((runs, slots)) * sd * np.sqrt(1.0 - persistence**2)
        shocks[:, 0] = rng.standard_normal(runs) * sd
        speed = np.exp(signal.lfilter([1.0], [1.0, -persistence], shocks, axis=1))
        index = np.arange(n) // block
        odd = index % 2
        return r * speed[:, 2 * index + odd], c * speed[:, 2 * index + 1 - odd]

    return draw


def booting(inner: Draw, *, boots: int, sd: float = BOOT_SD) -> Draw:
    """Every boot of every arm has an effect of its own on all its requests."""

    def draw(rng: Rng, runs: int, n: int, factor: float) -> tuple[Array, Array]:
        r, c = inner(rng, runs, n, factor)
        index = np.arange(n) * boots // n
        effect_r, effect_c = (np.exp(sd * rng.standard_normal((runs, boots)))[:, index] for _ in range(2))
        return r * effect_r, c * effect_c

    return draw


def coarse(inner: Draw, *, tick_seconds: float = 0.010) -> Draw:
    """A clock that rounds up to its tick."""

    def draw(rng: Rng, runs: int, n: int, factor: float) -> tuple[Array, Array]:
        return tuple(np.ceil(arm / tick_seconds) * tick_seconds for arm in inner(rng, runs, n, factor))  # type: ignore[return-value]

    return draw


def body_changed(inner: Draw, *, body: float, at: float = 0.90) -> Draw:
    """The body of the candidate is slower or faster by ``body``, on top of what ``inner`` does to its tail."""
    spread = float(np.hypot(NATURE, NOISE))
    edge = HIT_SECONDS * float(np.exp(spread * stats.norm.ppf(at)))

    def draw(rng: Rng, runs: int, n: int, factor: float) -> tuple[Array, Array]:
        r, c = inner(rng, runs, n, factor)
        # Never past the edge, so that the quantiles beyond it stay where they are.
        return r, np.where(c < edge, np.minimum(c * body, edge), c)

    return draw


def families() -> tuple[Family, ...]:
    """Return the families of the study."""
    nature = own_nature()
    special = (1.0,)
    return (
        Family(name="hits and misses", draw=mixture(), what="5 % misses, the same requests in both arms"),
        Family(
            name="hits and misses, independent",
            draw=mixture(same=False),
            what="5 % misses, other requests in each arm",
        ),
        Family(name="Pareto tail", draw=pareto(), what="shape 3, the request's size shared by the arms"),
        Family(name="shared component", draw=nature, what="log-normal, the request's nature shared by the arms"),
        Family(name="independent", draw=own_nature(nature=0.0, noise=0.3), what="log-normal, nothing shared (sd 0.3)"),
        Family(name="drift", draw=drifting(nature), what="shared component; speed AR(1) by block of 20, 5 %, A B B A"),
        Family(
            name="drift, hits and misses", draw=drifting(mixture()), what="hits and misses; speed AR(1) by block, 5 %"
        ),
        Family(name="boot effect, 5 boots", draw=booting(nature, boots=5), what="3 % per boot, labels given", boots=5),
        Family(
            name="boot effect, 3 boots, no labels",
            draw=booting(nature, boots=3),
            what="3 % per boot, the gate not told",
        ),
        Family(name="boot effect, 1 boot", draw=booting(nature, boots=1), what="3 % per boot, labels given", boots=1),
        Family(name="coarse clock", draw=coarse(mixture()), what="hits and misses; a clock of 10 ms"),
        Family(
            name="median worse, tail unchanged",
            draw=body_changed(nature, body=1.3),
            what="shared component; all below p90 1.3x slower",
            factors=special,
        ),
        Family(
            name="mean better, tail worse",
            draw=body_changed(nature, body=0.8),
            what="shared component; all below p90 0.8x, the tail 1.5x",
            factors=(1.5,),
        ),
        Family(
            name="a few more misses",
            draw=mixture(candidate_rate=0.06),
            what="6 % misses instead of 5 %, none slower",
            factors=special,
        ),
        Family(
            name="far more misses",
            draw=mixture(candidate_rate=0.30),
            what="30 % misses instead of 5 %, none slower",
            factors=special,
        ),
    )


def true_ratio(family: Family, factor: float, *, quantile: float = 0.99, seed: int = 7) -> float:
    """Return the candidate's true quantile over the reference's, from a million requests each."""
    rng = np.random.default_rng(seed)
    r, c = family.draw(rng, 500, 2000, factor)
    return float(np.quantile(c, quantile) / np.quantile(r, quantile))


def _lognormal(rng: Rng, runs: int, n: int, sd: float) -> Array:
    return np.exp(sd * rng.standard_normal((runs, n)))
