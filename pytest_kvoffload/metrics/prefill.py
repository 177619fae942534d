"""What a computed prompt token costs on this server, read from its own histograms."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_kvoffload.metrics import query
from pytest_kvoffload.records import Delta

_PREFILL_PARTS = (
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_prefill_time_seconds_count",
    "vllm:request_prefill_kv_computed_tokens_sum",
    "vllm:inter_token_latency_seconds_sum",
    "vllm:inter_token_latency_seconds_count",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCost:
    """What a computed prompt token costs, as the requests experienced it, between two bounds.

    ``high`` is prefill time over computed tokens; ``low`` leaves out one decode step a request (the mean inter-token
    latency), the part of a prefill that does not shrink with the tokens.
    """

    seconds_per_token_low: float
    seconds_per_token_high: float
    computed_tokens: float
    requests: float
    scope: str
    """``window``, or ``since boot`` where the window computed fewer tokens a request."""


def prefill_cost(delta: Delta) -> PrefillCost | None:
    """Return the cost from the window or from the server's life, whichever computed more tokens a request.

    A window in which nearly everything was restored computes a few tokens a request, whose cost is all overhead.
    """
    costs = [
        cost
        for scope, read in (("window", query.total), ("since boot", query.level))
        if (cost := _cost_of(scope, [read(delta, name) for name in _PREFILL_PARTS])) is not None
    ]
    return max(costs, key=lambda cost: cost.computed_tokens / cost.requests, default=None)


def _cost_of(scope: str, parts: list[float | None]) -> PrefillCost | None:
    seconds, requests, tokens, step_seconds, steps = (part or 0.0 for part in parts)
    if not (seconds > 0 and requests > 0 and tokens > 0):
        return None
    step = step_seconds / steps if steps > 0 else 0.0
    return PrefillCost(
        seconds_per_token_low=max(0.0, seconds - requests * step) / tokens,
        seconds_per_token_high=seconds / tokens,
        computed_tokens=tokens,
        requests=requests,
        scope=scope,
    )
