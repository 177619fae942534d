"""What server metrics alone can say about a tier: helping, hurting, no reuse, not needed, not exercised, or unclear.

There is no control here, so nothing is known about what the same traffic would have done without the tier. What the
metrics do carry is a comparison inside the server: what it cost to restore the tokens that a tier supplied (loads and
lookups, misses included) against what the same server takes to compute as many. The thresholds stand below and in
docs/meters.md; where the comparison does not clear both bounds of the computing cost the answer is ``unclear``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_kvoffload.metrics.hit_rate import HitRate, hit_rate
from pytest_kvoffload.metrics.meters import SCHEDULER, Meters
from pytest_kvoffload.metrics.readings import HistogramReading

Word: TypeAlias = Literal["helping", "hurting", "no reuse", "not needed", "not exercised", "unclear"]

MIN_REUSE_RATE = 0.01
"""Share of the prompt tokens below which a cache or tier counts as not reached."""
MIN_REQUESTS = 5
"""Requests with a first token below which a window says nothing about cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A word, the sentence that carries it, and what it does not cover."""

    word: Word
    reason: str
    evidence: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreCost:
    """Seconds that the tier took, summed over requests as they experienced it."""

    load_seconds: float
    lookup_seconds: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.load_seconds + self.lookup_seconds


def judge(meters: Meters) -> Verdict:
    """Judge a window of server metrics.

    Args:
        meters: of one window.

    Returns:
        ``not exercised``: no prompts, no connector, or nothing was ever stored or found; ``not needed``: prompts repeat
        and the device served the repeats; ``no reuse``: the tier was asked, and nothing was found anywhere;
        ``helping`` and ``hurting``: restoring cost less than the lower, or more than the upper bound of computing;
        ``unclear`` otherwise, with the reason.
    """
    device, external = hit_rate(meters, "device"), hit_rate(meters, "external")
    if not isinstance(device, HitRate) or not isinstance(external, HitRate):
        absent = device if not isinstance(device, HitRate) else external
        return Verdict(word="not exercised", reason=str(absent), limits=meters.caveats)
    if external.rate < MIN_REUSE_RATE:
        return _not_reached(meters, device, external)
    return _weighed(meters, external)


def restore_cost(meters: Meters) -> RestoreCost | None:
    """Return what restoring cost: loads and the scheduler's lookups, sync and async; ``None`` without a load meter."""
    if meters.load_seconds.value is None:
        return None
    lookups = (meters.lookup_sync[SCHEDULER], meters.lookup_async[SCHEDULER])
    return RestoreCost(
        load_seconds=meters.load_seconds.value,
        lookup_seconds=sum(_seconds(reading) for reading in lookups),
    )


def _not_reached(meters: Meters, device: HitRate, external: HitRate) -> Verdict:
    evidence = (str(device), str(external), *_store_evidence(meters))
    if meters.connector is None and external.hit_tokens == 0:
        return Verdict(
            word="not exercised",
            reason="the server shows no KV connector: there is no tier to judge",
            evidence=evidence,
            limits=meters.caveats,
        )
    if device.rate >= MIN_REUSE_RATE:
        return Verdict(
            word="not needed",
            reason=f"prompts repeat, and the device cache served the repeats ({device.rate:.1%} of the prompt tokens); "
            f"the tier supplied {external.rate:.1%}",
            evidence=evidence,
            limits=(*meters.caveats, "another working set, larger than the device cache, may need the tier"),
        )
    failures, stored = meters.allocation_failures.value, meters.store_bytes.value
    if failures and not stored:
        return Verdict(
            word="not exercised",
            reason=f"the tier stored nothing: {failures:g} stores found no room in it. It is smaller than the chunks "
            "of one scheduling step",
            evidence=evidence,
            limits=meters.caveats,
        )
    return Verdict(
        word="no reuse",
        reason=f"neither the device ({device.rate:.1%}) nor the tier ({external.rate:.1%}) had the prompts' tokens",
        evidence=evidence,
        limits=(
            *meters.caveats,
            "a tier that drops prefixes before they return, and chunks longer than the shared prefixes, look the same",
        ),
    )


def _weighed(meters: Meters, external: HitRate) -> Verdict:
    cost, compute = restore_cost(meters), meters.prefill_cost
    limits = [*meters.caveats, *_limits(meters, cost)]
    requests = meters.ttft.count
    if cost is None:
        return _unclear(external, f"what restoring cost is not exposed ({meters.load_seconds.reason})", limits)
    if compute is None:
        return _unclear(external, "the server has finished no prompt that it computed, so there is no price", limits)
    if requests < MIN_REQUESTS:
        return _unclear(external, f"{requests:g} requests are too few to judge, {MIN_REQUESTS} are needed", limits)
    low = compute.seconds_per_token_low * external.hit_tokens
    high = compute.seconds_per_token_high * external.hit_tokens
    price = f"computing them takes this server {_span(low, high)} s"
    spent = f"restoring {external.hit_tokens:g} tokens took {cost.seconds:.3g} s"
    evidence = (
        str(external),
        f"{spent} (loads {cost.load_seconds:.3g} s, lookups {cost.lookup_seconds:.3g} s)",
        f"{price} ({compute.computed_tokens:g} tokens of {compute.requests:g} requests, {compute.scope})",
        *_store_evidence(meters),
    )
    if cost.seconds < low:
        return Verdict(word="helping", reason=f"{spent}, {price}", evidence=evidence, limits=tuple(limits))
    cause = _cause(meters, cost)
    if cost.seconds > high:
        return Verdict(
            word="hurting",
            reason=f"{spent}, but {price}: the tier is slower than recomputing. {cause}",
            evidence=evidence,
            limits=tuple(limits),
        )
    return Verdict(
        word="unclear", reason=f"{spent}, {price}: too close. {cause}", evidence=evidence, limits=tuple(limits)
    )


def _cause(meters: Meters, cost: RestoreCost) -> str:
    """Name what the time of restoring went to: lookups or loads, whichever took most of it."""
    share = cost.lookup_seconds / cost.seconds if cost.seconds > 0 else 0.0
    if share < 0.5:
        return "Loads take most of it: look at chunk size and link bandwidth"
    means = {
        tier: reading.histogram.mean or 0.0
        for tier, reading in meters.lookup_async.items()
        if tier != SCHEDULER and reading.histogram is not None and reading.count > 0
    }
    slowest = max(means, key=lambda tier: means[tier], default=None)
    told = "" if slowest is None else f"; a lookup in tier {slowest} takes {means[slowest]:.3g} s"
    return f"The lookup delay is the cause: for {share:.0%} of that time requests waited for lookups{told}"


def _unclear(external: HitRate, reason: str, limits: list[str]) -> Verdict:
    return Verdict(
        word="unclear",
        reason=f"the tier supplied {external.rate:.1%} of the prompt tokens, but {reason}",
        evidence=(str(external),),
        limits=tuple(limits),
    )


def _limits(meters: Meters, cost: RestoreCost | None) -> list[str]:
    found = ["no control ran: what storing costs the other requests does not show here"]
    queued = _seconds(meters.queue)
    if cost is not None and queued > 2 * cost.seconds and queued > 1.0:
        found.append(
            f"requests queued for {queued:.3g} s together, and loads and lookups explain {cost.seconds:.3g} s of it: "
            "loads that hold up other requests would show there too"
        )
    if meters.cache_config.get("enable_prefix_caching") == "False":
        found.append("prefix caching is off: every repeat is loaded from the tier, also what the device still had")
    return found


def _store_evidence(meters: Meters) -> tuple[str, ...]:
    if meters.store_bytes.value is None or meters.load_bytes.value is None:
        return ()
    text = f"stored {_size(meters.store_bytes.value)}, loaded {_size(meters.load_bytes.value)}"
    if meters.allocation_failures.value:
        text += f", {meters.allocation_failures.value:g} stores found no room"
    return (text,)


def _seconds(reading: HistogramReading) -> float:
    return reading.histogram.sum if reading.histogram is not None else 0.0


def _span(low: float, high: float) -> str:
    a, b = f"{low:.3g}", f"{high:.3g}"
    return a if a == b else f"{a} to {b}"


def _size(size_bytes: float) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g} {unit}"
    return f"{size_bytes:g} bytes"
