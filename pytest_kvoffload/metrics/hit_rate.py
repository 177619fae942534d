"""Hit rates that mean what users think: hit tokens of a tier over all prompt tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pytest_kvoffload.catalog.metrics import metric_fact
from pytest_kvoffload.errors import UsageError, did_you_mean
from pytest_kvoffload.metrics.meters import CACHED_BY_SOURCE, TIERS, Meters
from pytest_kvoffload.metrics.readings import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRate:
    """A hit rate with its parts. ``rate`` may exceed 1 a little when requests were in flight at the window's edges."""

    tier: str
    hit_tokens: float
    prompt_tokens: float
    rate: float
    numerator: str
    denominator: str
    note: str = ""
    """What a reader has to know who expected another number (chunk rounding)."""

    def __str__(self) -> str:
        return f"{self.rate:.3f} ({self.hit_tokens:g} of {self.prompt_tokens:g} prompt tokens from tier {self.tier})"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricAbsent:
    """Why there is no such number: never to be taken for zero."""

    tier: str
    metric: str
    reason: str
    since: str | None = None
    """First vLLM version that exposes the metric, where not all do."""

    def __str__(self) -> str:
        return f"no hit rate of tier {self.tier}: {self.reason}"


HitRateResult: TypeAlias = HitRate | MetricAbsent


def hit_rate(meters: Meters, tier: str | None = None) -> HitRateResult:
    """Return the share of prompt tokens that a tier supplied.

    Args:
        meters: of one window.
        tier: ``device``; ``external`` for everything through the connector; ``host``, ``disk``, ``p2p`` or
            ``external_unspecified`` where vLLM tells them apart (0.32 and later); ``None`` for device and external
            together.

    Returns:
        The rate with its numerator and denominator, or the reason why there is none (the metric is absent, or no prompt
        was processed).

    Raises:
        UsageError: a tier that does not exist.
    """
    name = tier or "any"
    if tier is None:
        hits = _sum(meters.hit_tokens["device"], meters.hit_tokens["external"])
    elif tier in meters.hit_tokens:
        hits = meters.hit_tokens[tier]
    else:
        known = sorted({*TIERS, *meters.hit_tokens})
        raise UsageError(f"unknown tier {tier!r}{did_you_mean(tier, known)}; tiers are {', '.join(known)}")
    if hits.value is None:
        return _absent(name, hits, meters)
    asked = meters.prompt_tokens
    if asked.value is None:
        return MetricAbsent(tier=name, metric=asked.metric, reason=asked.reason)
    if asked.value <= 0:
        return MetricAbsent(tier=name, metric=asked.metric, reason="no prompt was processed in the window")
    return HitRate(
        tier=name,
        hit_tokens=hits.value,
        prompt_tokens=asked.value,
        rate=hits.value / asked.value,
        numerator=hits.metric,
        denominator=asked.metric,
        note=rounding_note(meters, tier),
    )


def rounding_note(meters: Meters, tier: str | None) -> str:
    """Explain why a rate of 1 cannot be reached: hits come in whole blocks or chunks."""
    block = meters.block_size_tokens
    if tier == "device":
        size = f" of {block} tokens" if block else ""
        return f"the device cache serves whole blocks{size} and never a prompt's last token"
    per_chunk = meters.tier_config.get("cpu_blocks_per_chunk")
    if block and per_chunk and per_chunk.isdigit():
        size = f" of {block * int(per_chunk)} tokens"
    elif block:
        size = f" (a multiple of the {block}-token block)"
    else:
        size = ""
    return f"a tier serves whole chunks{size}: the rest of a prefix, and a prefix shorter than a chunk, never hits"


def _absent(tier: str, hits: Reading, meters: Meters) -> MetricAbsent:
    name = hits.metric.split("{")[0]
    fact = metric_fact(name)
    reason = hits.reason
    if name == CACHED_BY_SOURCE and meters.hit_tokens["external"].value is not None:
        reason += "; tier 'external' counts all of them together"
    return MetricAbsent(tier=tier, metric=hits.metric, reason=reason, since=fact.since if fact else None)


def _sum(a: Reading, b: Reading) -> Reading:
    for part in (a, b):
        if part.value is None:
            return part
    return Reading(value=(a.value or 0.0) + (b.value or 0.0), metric=f"{a.metric} + {b.metric}", unit=a.unit)
