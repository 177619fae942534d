"""The warm-up modes: what each sends, and what it is made to show.

======================  ==========================================================================================
``restore``             the working set exceeds the device cache and fits the tier: the gain
``resident``            it fits the device cache: no tier is needed, and none may cost anything
``thrash``              it exceeds the tier as well: what a tier that is too small does
``burst``               many requests at once share one prefix that must be loaded first
``no_reuse``            nothing is ever asked twice: no cache can help, and no assertion may pass
``chat``                several turns over a history that the model generated
``restart``             the server is restarted before the revisit: only a tier that outlives it can serve
``shared``              another server's prompts, never seen by this one: only a tier that both use can serve them
``replay_log``          a request log of the user's own, twice
``fault``               a revisit before, during and after something is broken: what ``kvoffload chaos`` sends
======================  ==========================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pytest_kvoffload.errors import ConfigError, WorkloadError, did_you_mean
from pytest_kvoffload.records import PlanSummary, RequestSpec, ServerInfo, WorkloadConfig
from pytest_kvoffload.workload.draft import Draft
from pytest_kvoffload.workload.plan import (
    MINIMUM_SESSIONS,
    Geometry,
    Plan,
    check_workload,
    eviction_text,
    geometry,
)
from pytest_kvoffload.workload.prompts import SessionWriter
from pytest_kvoffload.workload.request_log import read_request_log
from pytest_kvoffload.workload.tokens import TokenPool

BURST_REQUESTS = 16
"""Requests of a burst where the workload's concurrency asks for fewer."""


def _evicting_sessions(draft: Draft) -> int:
    """Return how many sessions make a revisit leave the device; refuse a number that cannot."""
    asked, sizes = draft.workload.sessions, draft.sizes
    if asked is None:
        if sizes.device_blocks is None:
            raise WorkloadError(
                "the server does not tell the size of its device cache (no vllm:cache_config_info), so the number of "
                "sessions cannot be computed: set workload.sessions"
            )
        return max(MINIMUM_SESSIONS, sizes.sessions_to_evict(draft.workload.overflow))
    if sizes.device_blocks is not None and not sizes.evicts(asked):
        least = sizes.sessions_to_evict(1.0)
        raise WorkloadError(
            f"workload.sessions = {asked} is too few to prove eviction: {eviction_text(sizes, asked)}. "
            f"At least {least} sessions of {sizes.prompt_tokens} tokens are needed (or leave sessions out)"
        )
    return asked


def _restore(draft: Draft) -> Plan:
    sessions = _evicting_sessions(draft)
    notes: list[str] = []
    cold = draft.cycle(sessions, range(1))
    phases = [draft.phase("cold", cold, "clear")]
    held = min(draft.sizes.sessions_resident() - 1, sessions // 2)
    if held >= 1:
        again = tuple(_renumber(cold[-held:]))
        phases.append(draft.phase("resident", again, "none"))
    else:
        notes.append("no resident phase: the device cache does not hold one whole session beside a running request")
    restored = draft.cycle(sessions, range(draft.workload.turns), repeats=draft.workload.repeats)
    phases.append(draft.phase("restored", restored, "reset"))
    return Plan(
        summary=draft.summary(sessions, eviction_text(draft.sizes, sessions)), phases=tuple(phases), notes=tuple(notes)
    )


def _resident(draft: Draft) -> Plan:
    sizes = draft.sizes
    most = sizes.sessions_resident()
    if sizes.device_blocks is None and draft.workload.sessions is None:
        raise WorkloadError("the size of the device cache is not known: set workload.sessions for mode 'resident'")
    sessions = draft.workload.sessions or max(1, most // 2)
    if sizes.device_blocks is not None and sessions > most:
        raise WorkloadError(
            f"mode 'resident' needs a working set that the device holds: {sessions} sessions of {sizes.full_blocks} "
            f"blocks do not fit {sizes.device_blocks} blocks; at most {most} do"
        )
    repeats = max(draft.workload.repeats, math.ceil(MINIMUM_SESSIONS / sessions))
    text = f"{sessions} sessions of {sizes.full_blocks} full blocks fit the device cache: no revisit may need a tier"
    return Plan(
        summary=draft.summary(sessions, text),
        phases=(
            draft.phase("cold", draft.cycle(sessions, range(1)), "clear"),
            draft.phase("resident", draft.cycle(sessions, range(1), repeats=repeats), "none"),
        ),
    )


def _thrash(draft: Draft) -> Plan:
    sizes, sessions = draft.sizes, draft.workload.sessions
    if sessions is None:
        if sizes.tier_tokens is None:
            raise WorkloadError(
                "mode 'thrash' needs a working set larger than the tier, and the tier's capacity is not known for "
                "this arm: set workload.sessions (the tier arm's measurement says how many in plan.sessions)"
            )
        prompt = sizes.full_blocks * sizes.block_tokens
        above_tier = math.ceil(draft.workload.overflow * sizes.tier_tokens / prompt) + sizes.concurrency
        sessions = max(above_tier, _evicting_sessions(draft))
    text = eviction_text(sizes, sessions)
    if sizes.tier_tokens is not None:
        others = sizes.blocks_between(sessions) * sizes.block_tokens
        relation = ">=" if others >= sizes.tier_tokens else "<"
        text += f"; they also hold {others} tokens {relation} {sizes.tier_tokens} tokens of tier"
        if others < sizes.tier_tokens:
            raise WorkloadError(f"mode 'thrash': the working set fits the tier: {text}")
    cold = draft.cycle(sessions, range(1))
    restored = draft.cycle(sessions, range(1), repeats=draft.workload.repeats)
    return Plan(
        summary=draft.summary(sessions, text),
        phases=(draft.phase("cold", cold, "clear"), draft.phase("restored", restored, "reset")),
    )


def _burst(draft: Draft) -> Plan:
    if not draft.info.resets:
        raise WorkloadError(
            "mode 'burst' has to push one prefix out of the device, which needs /reset_prefix_cache: start the server "
            "with VLLM_SERVER_DEV_MODE=1"
        )
    size = max(draft.workload.concurrency, BURST_REQUESTS)
    one = draft.cycle(1, range(1))
    burst = draft.cycle(1, range(1, size + 1))
    text = (
        f"one prefix of {draft.workload.prefix_tokens} tokens; the device is reset, then {size} requests that share it "
        "arrive at once: one load serves all, or each waits for the one before it"
    )
    return Plan(
        summary=draft.summary(1, text, turns=size),
        phases=(
            draft.phase("cold", one, "clear"),
            draft.phase("restored", one, "reset"),
            draft.phase("burst", burst, "reset", concurrency=size, rate=False),
        ),
    )


def _no_reuse(draft: Draft) -> Plan:
    sessions = draft.workload.sessions or _evicting_sessions(draft)
    cold = draft.cycle(sessions, range(1))
    # Numbers of their own too: equal session and turn means equal prompt to whoever compares requests.
    other = tuple(
        replace(request, session=request.session + sessions)
        for request in draft.cycle(sessions, range(1), family="other-")
    )
    text = f"{sessions} prompts, then {sessions} others: nothing is asked twice, so no cache of any kind can hit"
    return Plan(
        summary=draft.summary(sessions, text),
        phases=(draft.phase("cold", cold, "clear"), draft.phase("restored", other, "reset")),
    )


def _chat(draft: Draft) -> Plan:
    turns = draft.workload.turns
    if turns < 2:
        raise ConfigError(
            section="workload",
            key="turns",
            got=str(turns),
            expected="at least 2 for mode 'chat': one turn has no history",
        )
    if draft.writer.pool.text_only:
        raise WorkloadError("mode 'chat' continues token by token and needs a server with /tokenize")
    sessions = _evicting_sessions(draft)
    first = draft.cycle(sessions, range(1))
    later = tuple(
        draft.writer.follow_up(
            index=sessions * turn + session, session=session, turn=turn, follows=sessions * (turn - 1) + session
        )
        for turn in range(1, turns)
        for session in range(sessions)
    )
    text = eviction_text(draft.sizes, sessions) + (
        f"; each of the {turns} turns is asked of every session before the next, so each turn's history was evicted"
    )
    return Plan(
        summary=draft.summary(sessions, text),
        phases=(
            draft.phase("cold", first, "clear"),
            draft.phase("restored", later, "reset"),
            draft.phase("replayed", later[-sessions:], "reset"),
        ),
    )


def _restart(draft: Draft) -> Plan:
    sessions = draft.workload.sessions or _evicting_sessions(draft)
    text = f"{sessions} sessions, then a new server process: only a tier that outlives the server can serve them again"
    return Plan(
        summary=draft.summary(sessions, text),
        phases=(
            draft.phase("cold", draft.cycle(sessions, range(1)), "clear"),
            draft.phase("restored", draft.cycle(sessions, range(1), repeats=draft.workload.repeats), "restart"),
        ),
    )


def _shared(draft: Draft) -> Plan:
    if draft.workload.cache_salt is None:
        raise ConfigError(
            section="workload",
            key="cache_salt",
            got="nothing",
            expected="the salt that the other server's measurement was given: without it every key differs",
        )
    sessions = _evicting_sessions(draft)
    text = (
        f"{sessions} sessions that another server was asked before and this one never: only a tier that both use can "
        "serve them"
    )
    return Plan(
        summary=draft.summary(sessions, text),
        phases=(draft.phase("restored", draft.cycle(sessions, range(1), repeats=draft.workload.repeats), "own"),),
    )


def _replay_log(draft: Draft) -> Plan:
    path = draft.workload.request_log
    if path is None:
        raise ConfigError(
            section="workload",
            key="request_log",
            got="nothing",
            expected="the path of a JSONL file for mode 'replay_log'",
        )
    log = read_request_log(
        path,
        pool=draft.writer.pool,
        max_model_len=draft.info.max_model_len,
        default_output=draft.workload.output_tokens,
    )
    block = draft.sizes.block_tokens
    distinct = {request.session: request.prompt_tokens // block for request in log.requests}
    working_set = sum(distinct.values()) * block
    device = draft.sizes.device_tokens
    at_once = sum(sorted(distinct.values())[-draft.workload.concurrency :]) * block
    evicts = device is not None and working_set - at_once >= device
    text = (
        f"{len(log.requests)} requests of {path} ({len(distinct)} distinct prompts, {working_set} tokens in full "
        "blocks) "
        + (f"against {device} tokens of device cache" if device is not None else "; device cache of unknown size")
    )
    summary = PlanSummary(
        mode="replay_log",
        seed=draft.workload.seed,
        sessions=len(distinct),
        turns=1,
        working_set_tokens=working_set,
        device_cache_tokens=device,
        block_size_tokens=draft.info.block_size_tokens,
        evicts=evicts,
        explanation=text,
    )
    timed = any(request.arrival_seconds is not None for request in log.requests)
    phases = (
        draft.phase("cold", log.requests, "clear", rate=not timed),
        draft.phase("restored", log.requests, "reset", rate=not timed),
    )
    return Plan(summary=summary, phases=phases, notes=log.notes)


def _fault(draft: Draft) -> Plan:
    """Revisits before, during and after; prompts of their own in the fault, since those must be stored as well."""
    sessions = _evicting_sessions(draft)
    cold = draft.cycle(sessions, range(1))
    news = draft.cycle(max(1, sessions // 4), range(1), family="new-")
    new = tuple(replace(request, session=request.session + sessions) for request in news)
    during = tuple(_renumber((*cold, *new)))
    text = (
        f"{eviction_text(draft.sizes, sessions)}; every session is revisited before, during and after the fault, and "
        f"{len(new)} new ones come during it"
    )
    return Plan(
        summary=draft.summary(sessions, text),
        phases=(
            draft.phase("cold", cold, "clear"),
            draft.phase("restored", cold, "reset"),
            draft.phase("fault", during, "reset"),
            draft.phase("recovered", during, "reset"),
        ),
    )


MODES: Mapping[str, Callable[[Draft], Plan]] = {
    "restore": _restore,
    "resident": _resident,
    "thrash": _thrash,
    "burst": _burst,
    "no_reuse": _no_reuse,
    "chat": _chat,
    "restart": _restart,
    "shared": _shared,
    "replay_log": _replay_log,
    "fault": _fault,
}


def build_plan(workload: WorkloadConfig, info: ServerInfo, pool: TokenPool, *, tier_tokens: int | None = None) -> Plan:
    """Plan a workload against a server.

    Args:
        workload: what is asked for.
        info: the server's own numbers (block size, blocks, max_model_len).
        pool: the tokens that prompts are made of.
        tier_tokens: capacity of the tier, needed by mode ``thrash`` only.

    Raises:
        ConfigError: an unknown mode or a value that cannot mean anything.
        WorkloadError: the workload does not fit the server, or cannot prove what the mode is for.
    """
    if workload.mode not in MODES:
        raise ConfigError(
            section="workload",
            key="mode",
            got=repr(workload.mode),
            expected="one of " + ", ".join(MODES),
            hint=did_you_mean(workload.mode, MODES),
        )
    check_workload(workload, info)
    if workload.mode == "replay_log":
        sizes = Geometry(
            prompt_tokens=workload.prefix_tokens,
            output_tokens=workload.output_tokens,
            block_tokens=info.block_size_tokens or 16,
            device_blocks=info.device_cache_blocks,
        )
    else:
        sizes = geometry(workload, info, tier_tokens=tier_tokens)
    writer = SessionWriter(pool=pool, workload=workload, block_tokens=sizes.block_tokens)
    plan = MODES[workload.mode](Draft(workload=workload, info=info, sizes=sizes, writer=writer))
    needs_reset = any(phase.preparation == "reset" for phase in plan.phases)
    if needs_reset and not info.resets and workload.mode != "no_reuse" and not plan.summary.evicts:
        raise WorkloadError(
            "the device cache cannot be reset (no developer mode) and the working set does not push its own blocks "
            f"out: {plan.summary.explanation}. Set VLLM_SERVER_DEV_MODE=1 on the server, or use more sessions"
        )
    return plan


def _renumber(requests: Sequence[RequestSpec]) -> list[RequestSpec]:
    return [replace(request, index=index) for index, request in enumerate(requests)]
