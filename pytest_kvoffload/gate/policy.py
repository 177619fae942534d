"""The section ``[gate]``: what is asked of the tail, and how many requests may be spent on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_kvoffload.errors import ConfigError, did_you_mean
from pytest_kvoffload.gate.verdict import Policy

_KEYS = ("margin", "quantile", "alpha", "confidence", "phase", "requests", "boots")
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How much a gate run may spend."""

    requests: int = 300
    boots: int = 2


def policy_of(
    section: Mapping[str, Any],
    overrides: Mapping[str, Any],
    run_overrides: Mapping[str, Any],
    *,
    source: str | None = None,
) -> tuple[Policy, RunSettings]:
    """Read ``[gate]``, command-line values first.

    Raises:
        ConfigError: an unknown key, or a value out of range.
    """
    for key in section:
        if key not in _KEYS:
            raise ConfigError(
                section="gate",
                key=key,
                got="an unknown key",
                expected="one of " + ", ".join((*_KEYS, "thresholds")),
                source=source,
                hint=did_you_mean(key, _KEYS),
            )
    given = {**section, **{k: v for k, v in {**overrides, **run_overrides}.items() if v is not None}}

    def fraction(key: str, default: float, *, low: float = 0.0, high: float = 1.0) -> float:
        value = given.get(key, default)
        if isinstance(value, str) and (percent := _PERCENT.fullmatch(value)):
            value = float(percent.group(1)) / 100
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value < high:
            what = f"a fraction above {low:g} and below {high:g}, or a percentage such as '10%'"
            raise ConfigError(section="gate", key=key, got=repr(value), expected=what, source=source)
        return float(value)

    def count(key: str, default: int) -> int:
        value = given.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            expected = "a whole number of at least 1"
            raise ConfigError(section="gate", key=key, got=repr(value), expected=expected, source=source)
        return value

    phase = given.get("phase", Policy().phase)
    if not isinstance(phase, str):
        raise ConfigError(section="gate", key="phase", got=repr(phase), expected="the name of a phase", source=source)
    policy = Policy(
        quantile=fraction("quantile", Policy().quantile),
        margin=fraction("margin", Policy().margin, high=10.0),
        alpha=fraction("alpha", Policy().alpha),
        confidence=fraction("confidence", Policy().confidence),
        phase=phase,
    )
    settings = RunSettings(
        requests=count("requests", RunSettings().requests), boots=count("boots", RunSettings().boots)
    )
    return policy, settings
