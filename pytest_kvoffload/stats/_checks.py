"""Refusal of numbers that no statistic can use, and the lazy import of the optional extra."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from pytest_kvoffload.errors import MissingExtraError


def require(package: str, feature: str) -> Any:
    """Import ``package`` (of the extra ``gate``) for ``feature``.

    Raises:
        MissingExtraError: the package is not installed; the message says what to install.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(feature, "gate", package.partition(".")[0]) from error


def finite_list(samples: Iterable[float], name: str) -> list[float]:
    """Return the samples as floats.

    Raises:
        ValueError: empty, or a value that is NaN or infinite; the message names the position.
    """
    values = [float(value) for value in samples]
    if not values:
        raise ValueError(f"{name} is empty: no statistic of no samples exists")
    for position, value in enumerate(values):
        if not math.isfinite(value):
            raise ValueError(
                f"{name}[{position}] is {value}: every sample must be a finite number"
                " (drop or refuse failed requests before the statistics)"
            )
    return values


def positive_list(samples: Iterable[float], name: str) -> list[float]:
    """Return durations as floats.

    Raises:
        ValueError: empty, NaN, infinite, zero or negative; the message names the position.
    """
    values = finite_list(samples, name)
    for position, value in enumerate(values):
        if value <= 0.0:
            raise ValueError(f"{name}[{position}] is {value}: a duration must be above zero")
    return values


def probability(value: float, name: str) -> float:
    """Return ``value`` when it lies strictly between 0 and 1, else raise ``ValueError``."""
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} is {value}: it must lie strictly between 0 and 1")
    return float(value)


def exact(value: float) -> Fraction:
    """Return the decimal that was written, not its binary neighbour: 0.07 * 100 is 7 here, and not above 7."""
    return Fraction(repr(float(value)))
