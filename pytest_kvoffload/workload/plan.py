"""The plan: which requests, in which phases, and why a revisit must come from a tier.

The proof of eviction. vLLM keeps evictable blocks in one queue, least recently used first, and frees the blocks of
a request from its tail. Sessions are visited in a cycle; between two visits of a session all others are visited.
With ``n`` sessions of ``b`` full blocks each, ``c`` at once, and a device cache of ``N`` blocks, what surely comes in
between fills the device when ``(n - c) * b >= N``: then not one block of the first visit can be left at the second,
whatever the order within the queue. ``overflow`` is the margin on top of that. For open arrivals the argument takes
requests to end in about the order in which they came.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from pytest_kvoffload.errors import ConfigError, WorkloadError
from pytest_kvoffload.records import PhaseName, PlanSummary, RequestSpec, ServerInfo, WorkloadConfig

Preparation = Literal["clear", "none", "reset", "restart", "own"]
"""What happens before a phase: everything cleared, nothing, the device cache reset, the server restarted, or what the
server holds alone cleared (device and host tier) and nothing that it may share."""

DEFAULT_BLOCK_TOKENS = 16
"""Assumed where the server does not tell its block size (vLLM's default on GPUs)."""

MINIMUM_SESSIONS = 12
"""A median of fewer restored requests says little; the device cache may ask for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPhase:
    """One phase: its requests in sending order and what is done before it."""

    name: PhaseName
    requests: tuple[RequestSpec, ...]
    preparation: Preparation
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will be sent, and the arithmetic behind it."""

    summary: PlanSummary
    phases: tuple[PlannedPhase, ...]
    notes: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        """Number of requests over all phases."""
        return sum(len(phase.requests) for phase in self.phases)

    def with_salt(self, salt: str) -> Plan:
        """Return the plan with ``cache_salt`` on every request: nothing older can be a hit."""
        phases = tuple(
            replace(phase, requests=tuple(replace(request, cache_salt=salt) for request in phase.requests))
            for phase in self.phases
        )
        return replace(self, phases=phases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Prompt and cache sizes of one plan, in tokens and blocks."""

    prompt_tokens: int
    output_tokens: int
    block_tokens: int
    device_blocks: int | None
    """Of all replicas together."""
    tier_tokens: int | None = None
    concurrency: int = 1
    replicas: int = 1

    @property
    def full_blocks(self) -> int:
        """Blocks of one prompt that can be cached at all: only full ones are."""
        return self.prompt_tokens // self.block_tokens

    @property
    def blocks_in_use(self) -> int:
        """Blocks that one running request occupies."""
        return math.ceil((self.prompt_tokens + self.output_tokens) / self.block_tokens)

    @property
    def device_tokens(self) -> int | None:
        """Device cache in tokens."""
        return None if self.device_blocks is None else self.device_blocks * self.block_tokens

    def working_set_tokens(self, sessions: int) -> int:
        """What ``sessions`` prompts leave behind in a cache that is large enough."""
        return sessions * self.full_blocks * self.block_tokens

    def evicts(self, sessions: int) -> bool:
        """Whether what surely comes between two visits of a session fills the device cache."""
        return self.device_blocks is not None and self.blocks_between(sessions) >= self.device_blocks

    def blocks_between(self, sessions: int) -> int:
        """Blocks that are used for certain between two visits of one session.

        All other sessions are; but of those that ran at the same time some may have ended before it did.
        """
        return max(0, sessions - self.concurrency) * self.full_blocks

    def sessions_to_evict(self, overflow: float) -> int:
        """Fewest sessions whose others fill the device ``overflow`` times over."""
        if self.device_blocks is None:
            raise WorkloadError("the size of the device cache is not known")
        return math.ceil(overflow * self.device_blocks / self.full_blocks) + self.concurrency

    def sessions_resident(self) -> int:
        """Most sessions that the device holds while one of them is being served."""
        if self.device_blocks is None:
            return 0
        # One block is vLLM's null block, and the request that runs may need a partial one of its own.
        spare = self.blocks_in_use - self.full_blocks + 1
        return max(0, (self.device_blocks // self.replicas - spare) // self.full_blocks)


def check_workload(workload: WorkloadConfig, info: ServerInfo) -> None:
    """Refuse a workload that cannot mean anything, before a request is sent.

    Raises:
        ConfigError: the section's key, what it holds, what would be legal.
    """
    _positive(workload)
    block = info.block_size_tokens or DEFAULT_BLOCK_TOKENS
    if workload.mode != "replay_log" and workload.prefix_tokens < block:
        raise ConfigError(
            section="workload",
            key="prefix_tokens",
            got=str(workload.prefix_tokens),
            expected=f"at least one block of {block} tokens: vLLM caches full blocks only, a shorter prefix never hits",
        )
    total = workload.prefix_tokens + workload.suffix_tokens + workload.output_tokens
    if workload.mode == "chat":
        total = longest_chat_tokens(workload)
    if workload.mode != "replay_log" and info.max_model_len is not None and total > info.max_model_len:
        raise ConfigError(
            section="workload",
            key="prefix_tokens",
            got=f"{workload.prefix_tokens} (with suffix and output {total} tokens)",
            expected=f"at most max_model_len = {info.max_model_len} tokens for prompt and output together; "
            "shorten the prompt or raise engine.max_model_len",
        )


def longest_chat_tokens(workload: WorkloadConfig) -> int:
    """Return the tokens of a conversation's last turn, its answer included."""
    return workload.prefix_tokens + workload.turns * (workload.suffix_tokens + workload.output_tokens)


def _positive(workload: WorkloadConfig) -> None:
    checks: tuple[tuple[str, float | None, float, str], ...] = (
        ("prefix_tokens", workload.prefix_tokens, 1, "at least 1"),
        ("suffix_tokens", workload.suffix_tokens, 0, "at least 0"),
        ("output_tokens", workload.output_tokens, 1, "at least 1 (the first token is what is timed)"),
        ("turns", workload.turns, 1, "at least 1"),
        ("concurrency", workload.concurrency, 1, "at least 1"),
        ("repeats", workload.repeats, 1, "at least 1"),
        ("sessions", workload.sessions, 1, "at least 1, or absent to size it from the server"),
    )
    for key, value, least, expected in checks:
        if value is not None and value < least:
            raise ConfigError(section="workload", key=key, got=str(value), expected=expected)
    if workload.rate_per_second is not None and not workload.rate_per_second > 0:
        raise ConfigError(
            section="workload",
            key="rate_per_second",
            got=str(workload.rate_per_second),
            expected="more than 0 requests per second, or absent for a closed loop",
        )
    if workload.sessions is None and not workload.overflow > 1:
        raise ConfigError(
            section="workload",
            key="overflow",
            got=str(workload.overflow),
            expected="more than 1: otherwise the device keeps the working set and no tier is asked",
        )


def geometry(workload: WorkloadConfig, info: ServerInfo, *, tier_tokens: int | None = None) -> Geometry:
    """Measure one prompt against the server's caches.

    Raises:
        WorkloadError: not even one request fits the device cache.
    """
    sizes = Geometry(
        prompt_tokens=workload.prefix_tokens + workload.suffix_tokens,
        output_tokens=workload.output_tokens,
        block_tokens=info.block_size_tokens or DEFAULT_BLOCK_TOKENS,
        device_blocks=info.device_cache_blocks,
        tier_tokens=tier_tokens,
        concurrency=workload.concurrency,
        replicas=info.replicas,
    )
    longest = sizes.blocks_in_use
    if workload.mode == "chat":
        longest = math.ceil(longest_chat_tokens(workload) / sizes.block_tokens)
    if info.num_gpu_blocks is not None and longest >= info.num_gpu_blocks:
        raise WorkloadError(
            f"one request needs {longest} blocks of {sizes.block_tokens} tokens, the device cache has "
            f"{info.num_gpu_blocks}: shorten workload.prefix_tokens or raise engine.num_gpu_blocks"
        )
    return sizes


def eviction_text(sizes: Geometry, sessions: int) -> str:
    """Say the arithmetic of eviction in one sentence."""
    per = f"{sizes.full_blocks} full blocks of {sizes.block_tokens} tokens each"
    if sizes.device_blocks is None:
        return (
            f"{sessions} sessions leave {per}; the server does not tell the size of its device cache, so eviction "
            "is not proven"
        )
    others = sizes.blocks_between(sessions)
    which = f"the other {sessions - 1}"
    if sizes.concurrency > 1:
        which = f"at least {max(0, sessions - sizes.concurrency)} others ({sizes.concurrency} at once)"
    relation = ">=" if sizes.evicts(sessions) else "<"
    claim = (
        "the others push a session out before it is revisited"
        if sizes.evicts(sessions)
        else "the device may still hold a session when it is revisited"
    )
    return (
        f"{sessions} sessions leave {per}; between two visits of one {which} fill {others} blocks {relation} "
        f"{sizes.device_blocks} blocks of device cache: {claim}"
    )
