"""Several looks and several metrics without a larger error: spending of alpha over looks, Holm over a family."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from pytest_kvoffload.stats._checks import probability, require
from pytest_kvoffload.stats.result import TailResult
from pytest_kvoffload.stats.tail import tail_regression

Spending: TypeAlias = Literal["linear", "obrien-fleming", "pocock"]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at the data so far."""

    result: TailResult
    """Decided at the level and the confidence that this look may spend; ``result.n`` is the n that was reached."""
    final: bool
    """Whether no look comes after this one."""
    alpha_before: float
    """What earlier looks have spent."""

    @property
    def stop(self) -> bool:
        """Whether to stop sending requests: a verdict was reached, or no look is left."""
        return self.final or self.result.decision != "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialGate:
    """A plan of looks at a growing sample: a clear verdict stops early, and the whole plan keeps its error.

    Each look has a level of its own, and the levels add up to ``alpha``: by Boole's inequality the plan blocks an
    innocent change with probability at most ``alpha`` however the looks depend on each other, drift and boots
    included. The usual group-sequential boundaries win a little by assuming independent increments; nothing here
    assumes that. The error of "not worse" is spent alike.

    Args:
        looks: requests per arm at which to look, ascending; the last is the whole sample.
        alpha: error rate of "worse" of the whole plan.
        confidence: of the interval at the end of the plan; what the looks spend of its error adds up likewise.
        spending: which share of the error is spent by a share t of the requests, as in Lan and DeMets (1983),
            "Discrete sequential boundaries for clinical trials", Biometrika 70(3): ``linear`` (t, the default),
            ``pocock`` (``log(1 + (e - 1) t)``) or ``obrien-fleming`` (``2 - 2 Phi(z / sqrt(t))``, almost nothing
            early).

    Raises:
        ValueError: no looks, looks not ascending from 1, or an argument out of range.
    """

    looks: tuple[int, ...]
    alpha: float = 0.01
    confidence: float = 0.95
    spending: Spending = "linear"

    def __post_init__(self) -> None:
        probability(self.alpha, "alpha")
        probability(self.confidence, "confidence")
        if not self.looks or self.looks[0] < 1 or any(b <= a for a, b in zip(self.looks, self.looks[1:], strict=False)):
            raise ValueError(f"looks is {self.looks}: it must hold ascending numbers of requests, such as (150, 300)")
        if self.spending not in {"linear", "obrien-fleming", "pocock"}:
            raise ValueError(f"spending is {self.spending!r}: linear, obrien-fleming or pocock")

    def spent(self, n: int) -> float:
        """Return the error spent by the looks up to n requests, in [0, alpha]."""
        reached = [look for look in self.looks if look <= n]
        return self._spend(self.alpha, reached[-1] / self.looks[-1]) if reached else 0.0

    def next_look(self, n: int) -> int | None:
        """Return the first look beyond n requests, ``None`` after the last."""
        return next((look for look in self.looks if look > n), None)

    def look(
        self,
        reference: Sequence[float],
        candidate: Sequence[float],
        *,
        quantile: float = 0.99,
        margin: float = 0.10,
        paired: bool = True,
        blocks: Sequence[Hashable] | tuple[Sequence[Hashable], Sequence[Hashable]] | None = None,
        boots: Sequence[Hashable] | tuple[Sequence[Hashable], Sequence[Hashable]] | None = None,
    ) -> Look:
        """Judge the requests so far, which must be exactly as many as one of the looks.

        The arguments are those of :func:`~pytest_kvoffload.stats.tail.tail_regression`.

        Raises:
            ValueError: the number of requests is not one of the looks (looking at another time would spend error that
                the plan does not have), or as ``tail_regression`` does.
        """
        n = min(len(reference), len(candidate))
        if n not in self.looks:
            raise ValueError(f"{n} requests is not one of the planned looks {self.looks}")
        place = self.looks.index(n)
        before = self.looks[place - 1] / self.looks[-1] if place else 0.0
        now = n / self.looks[-1]
        level = self._spend(self.alpha, now) - self._spend(self.alpha, before)
        miss = self._spend(1.0 - self.confidence, now) - self._spend(1.0 - self.confidence, before)
        result = tail_regression(
            reference,
            candidate,
            quantile=quantile,
            margin=margin,
            # A boundary that has spent nothing yet cannot block; the smallest positive number stands for it.
            alpha=max(level, 1e-300),
            paired=paired,
            blocks=blocks,
            boots=boots,
            confidence=1.0 - max(miss, 1e-15),
        )
        return Look(result=result, final=place == len(self.looks) - 1, alpha_before=self._spend(self.alpha, before))

    def _spend(self, error: float, t: float) -> float:
        if t <= 0.0:
            return 0.0
        if self.spending == "linear":
            return error * min(t, 1.0)
        if self.spending == "pocock":
            return error * math.log1p((math.e - 1.0) * min(t, 1.0))
        special = require("scipy.special", "O'Brien-Fleming spending")
        return 2.0 * float(special.ndtr(special.ndtri(error / 2.0) / math.sqrt(min(t, 1.0))))


def holm(p_values: Mapping[Key, float], alpha: float = 0.01) -> dict[Key, bool]:
    """Tell which of several tests reject, with the probability of any false one at most ``alpha``.

    Holm's step-down procedure (1979), "A simple sequentially rejective multiple test procedure", Scandinavian Journal
    of Statistics 6(2): valid however the tests depend on each other, as metrics of the same requests do.

    Args:
        p_values: one per metric, arm or phase, under any key.
        alpha: error rate of the whole family.

    Raises:
        ValueError: a p-value outside [0, 1], or ``alpha`` out of range.
    """
    probability(alpha, "alpha")
    return {key: adjusted <= alpha for key, adjusted in holm_adjusted(p_values).items()}


def holm_adjusted(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Return Holm's adjusted p-values under the same keys: the smallest family level at which each test rejects.

    Raises:
        ValueError: a p-value outside [0, 1].
    """
    _check_p(p_values.items())
    adjusted: dict[Key, float] = {}
    running = 0.0
    for place, (key, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        running = max(running, min(1.0, (len(p_values) - place) * p))
        adjusted[key] = running
    return {key: adjusted[key] for key in p_values}


def _check_p(items: Iterable[tuple[Hashable, float]]) -> None:
    for key, p in items:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"the p-value of {key!r} is {p}: it must lie between 0 and 1")
