from __future__ import annotations

import dataclasses
import itertools
import math
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_kvoffload.errors import ConfigError, WorkloadError
from pytest_kvoffload.records import ServerInfo, WorkloadConfig
from pytest_kvoffload.workload.modes import MODES, build_plan
from pytest_kvoffload.workload.plan import Geometry, Plan
from pytest_kvoffload.workload.tokens import TokenPool

POOL = TokenPool(ids=tuple(range(10, 110)))
WORKLOAD = WorkloadConfig(prefix_tokens=160, suffix_tokens=5, output_tokens=4)


def server(**changes: object) -> ServerInfo:
    info = ServerInfo(
        url="http://127.0.0.1:1",
        metrics_urls=("http://127.0.0.1:1/metrics",),
        engine_kind="attach",
        model="m",
        vllm_version="0.32.0",
        max_model_len=4096,
        block_size_tokens=16,
        num_gpu_blocks=40,
        resets=True,
    )
    return dataclasses.replace(info, **changes)  # type: ignore[arg-type]


def plan(workload: WorkloadConfig = WORKLOAD, info: ServerInfo | None = None, **changes: object) -> Plan:
    return build_plan(
        dataclasses.replace(workload, **changes),  # type: ignore[arg-type]
        info or server(),
        POOL,
    )


def prompts(made: Plan, phase: str) -> list[tuple[int, ...]]:
    return [request.prompt_token_ids for one in made.phases if one.name == phase for request in one.requests]


def test_the_working_set_exceeds_the_device_cache_and_the_text_says_so() -> None:
    made = plan(overflow=2.0, prefix_tokens=96)
    summary = made.summary
    assert summary.evicts
    # 40 blocks, 6 full blocks a prompt: 14 others are needed to fill it twice.
    assert summary.sessions == math.ceil(2.0 * 40 / 6) + 1
    assert summary.working_set_tokens == summary.sessions * 96
    assert summary.device_cache_tokens == 640
    assert (
        f"the other {summary.sessions - 1} fill {(summary.sessions - 1) * 6} blocks >= 40 blocks of device cache"
        in summary.explanation
    )


def test_restore_has_three_phases_and_their_preparations() -> None:
    made = plan()
    assert [(phase.name, phase.preparation) for phase in made.phases] == [
        ("cold", "clear"),
        ("resident", "none"),
        ("restored", "reset"),
    ]
    cold, resident = prompts(made, "cold"), prompts(made, "resident")
    assert prompts(made, "restored") == cold
    assert resident == cold[-len(resident) :]


def test_no_two_sessions_share_their_first_block() -> None:
    heads = [prompt[:16] for prompt in prompts(plan(sessions=40), "cold")]
    assert len(set(heads)) == 40


def test_equal_first_blocks_are_drawn_again() -> None:
    # Two ids and a block of one token: the pool forces collisions, three sessions cannot all differ.
    made = build_plan(
        dataclasses.replace(WORKLOAD, sessions=16, prefix_tokens=16),
        server(block_size_tokens=4, num_gpu_blocks=12),
        TokenPool(ids=tuple(range(3))),
    )
    heads = [prompt[:4] for prompt in prompts(made, "cold")]
    assert len(set(heads)) == 16


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert plan() == plan()
    assert prompts(plan(), "cold") != prompts(plan(seed=1), "cold")


def test_a_session_does_not_depend_on_how_many_there_are() -> None:
    assert prompts(plan(sessions=12), "cold") == prompts(plan(sessions=20), "cold")[:12]


def test_turns_share_the_prefix_and_differ_in_the_suffix() -> None:
    made = plan(turns=3)
    restored = next(phase for phase in made.phases if phase.name == "restored")
    assert len(restored.requests) == 3 * made.summary.sessions
    first = [request for request in restored.requests if request.session == 0]
    assert len({request.prompt_token_ids[:160] for request in first}) == 1
    assert len({request.prompt_token_ids for request in first}) == 3


def test_poisson_arrivals_start_at_zero_and_have_the_asked_rate() -> None:
    made = plan(sessions=400, rate_per_second=50.0)
    times = [request.arrival_seconds for request in made.phases[0].requests]
    assert times[0] == 0.0
    known = [time for time in times if time is not None]
    gaps = [b - a for a, b in itertools.pairwise(known)]
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 50, rel=0.2)
    assert min(gaps) > 0


def test_too_few_sessions_are_refused_with_the_number_that_suffices() -> None:
    with pytest.raises(WorkloadError, match=r"workload.sessions = 3 is too few to prove eviction.*At least 5 sessions"):
        plan(sessions=3)
    assert plan(sessions=5).summary.evicts


def test_a_prompt_longer_than_the_model_allows_is_a_config_error() -> None:
    with pytest.raises(
        ConfigError, match=r"\[workload\] prefix_tokens: got 4090 \(with suffix and output 4099 tokens\)"
    ):
        plan(prefix_tokens=4090)


def test_a_prompt_longer_than_the_device_cache_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"one request needs 41 blocks of 16 tokens, the device cache has 40"):
        plan(prefix_tokens=640)


def test_a_prefix_shorter_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one block of 16 tokens"):
        plan(prefix_tokens=15)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("output_tokens", 0),
        ("concurrency", 0),
        ("repeats", 0),
        ("turns", 0),
        ("overflow", 1.0),
        ("rate_per_second", 0.0),
    ],
)
def test_values_that_mean_nothing_are_refused(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"\[workload\] {key}: got {value}"):
        build_plan(dataclasses.replace(WORKLOAD, **{key: value}), server(), POOL)  # type: ignore[arg-type]


def test_an_unknown_mode_is_refused_with_the_closest_one() -> None:
    with pytest.raises(ConfigError, match=r"expected one of restore, resident.*did you mean 'thrash'"):
        plan(mode="trash")


def test_a_server_that_tells_no_cache_size_needs_sessions() -> None:
    blind = server(num_gpu_blocks=None, block_size_tokens=None)
    with pytest.raises(WorkloadError, match=r"does not tell the size of its device cache.*set workload.sessions"):
        plan(info=blind)
    made = plan(info=blind, sessions=6)
    assert not made.summary.evicts
    assert "eviction is not proven" in made.summary.explanation


def test_without_resets_only_a_proven_eviction_is_accepted() -> None:
    assert plan(info=server(resets=False)).summary.evicts
    with pytest.raises(WorkloadError, match=r"cannot be reset \(no developer mode\)"):
        plan(info=server(resets=False, num_gpu_blocks=None), sessions=6)
    with pytest.raises(WorkloadError, match="mode 'burst' has to push one prefix out"):
        plan(info=server(resets=False), mode="burst")


def test_a_device_that_holds_no_whole_session_has_no_resident_phase() -> None:
    made = plan(info=server(num_gpu_blocks=13))
    assert [phase.name for phase in made.phases] == ["cold", "restored"]
    assert made.notes == (
        "no resident phase: the device cache does not hold one whole session beside a running request",
    )


def test_a_salt_reaches_every_request() -> None:
    salted = plan().with_salt("s1")
    assert {request.cache_salt for phase in salted.phases for request in phase.requests} == {"s1"}


def test_resident_fits_the_device_and_repeats_for_a_sample() -> None:
    made = plan(mode="resident")
    assert made.summary.sessions == 1
    assert not made.summary.evicts
    assert len(prompts(made, "resident")) >= 12
    with pytest.raises(WorkloadError, match=r"mode 'resident' needs a working set that the device holds: 9 sessions"):
        plan(mode="resident", sessions=9)


def test_thrash_exceeds_the_tier_or_says_what_is_missing() -> None:
    made = build_plan(dataclasses.replace(WORKLOAD, mode="thrash"), server(), POOL, tier_tokens=3200)
    assert (made.summary.sessions - 1) * 160 >= 1.5 * 3200
    assert "tokens of tier" in made.summary.explanation
    with pytest.raises(WorkloadError, match=r"the tier's capacity is not known for this arm: set workload.sessions"):
        plan(mode="thrash")
    with pytest.raises(WorkloadError, match="the working set fits the tier"):
        build_plan(dataclasses.replace(WORKLOAD, mode="thrash", sessions=12), server(), POOL, tier_tokens=10_000)


def test_burst_sends_many_requests_of_one_prefix_at_once() -> None:
    made = plan(mode="burst", concurrency=20)
    burst = made.phases[-1]
    assert (burst.name, burst.concurrency, len(burst.requests)) == ("burst", 20, 20)
    assert len({request.prompt_token_ids[:160] for request in burst.requests}) == 1
    assert len({request.prompt_token_ids for request in burst.requests}) == 20


def test_no_reuse_asks_nothing_twice() -> None:
    made = plan(mode="no_reuse")
    everything = prompts(made, "cold") + prompts(made, "restored")
    assert len({prompt[:16] for prompt in everything}) == len(everything)
    cold, restored = ({r.session for r in one.requests} for one in made.phases)
    assert not cold & restored


def test_chat_turns_follow_the_turn_before() -> None:
    made = plan(mode="chat", turns=3)
    sessions = made.summary.sessions
    restored = next(phase for phase in made.phases if phase.name == "restored").requests
    assert len(restored) == 2 * sessions
    assert [request.follows for request in restored] == list(range(2 * sessions))
    assert [request.index for request in restored] == list(range(sessions, 3 * sessions))
    with pytest.raises(ConfigError, match="at least 2 for mode 'chat'"):
        plan(mode="chat", turns=1)


def test_restart_prepares_a_restart() -> None:
    assert [phase.preparation for phase in plan(mode="restart").phases] == ["clear", "restart"]


def test_every_mode_of_the_table_is_documented() -> None:
    import pytest_kvoffload.workload.modes as module

    assert all(f"``{mode}``" in (module.__doc__ or "") for mode in MODES)


# -------------------------------------------------------------------------------------------- the proof itself
def lru_hits(sessions: int, blocks_each: int, capacity: int, order: list[int]) -> int:
    """Count block hits in an LRU cache that frees a request's blocks from its tail, as vLLM's queue does."""
    cache: OrderedDict[tuple[int, int], None] = OrderedDict()
    hits, seen = 0, set()
    for session in order:
        for block in range(blocks_each):
            if (session, block) not in cache:
                break
            hits += session in seen
        seen.add(session)
        for block in reversed(range(blocks_each)):
            cache[session, block] = None
            cache.move_to_end((session, block))
            while len(cache) > capacity:
                cache.popitem(last=False)
    return hits


def test_requests_at_once_need_more_sessions() -> None:
    made = plan(concurrency=4, overflow=2.0, prefix_tokens=96)
    assert made.summary.sessions == math.ceil(2.0 * 40 / 6) + 4
    assert "at least 14 others (4 at once) fill 84 blocks >= 40 blocks" in made.summary.explanation


def test_a_conversation_must_fit_the_device_to_its_end() -> None:
    with pytest.raises(WorkloadError, match=r"one request needs 40 blocks of 16 tokens, the device cache has 40"):
        plan(mode="chat", turns=10, output_tokens=40, suffix_tokens=8)


@given(blocks_each=st.integers(1, 12), capacity=st.integers(2, 80), sessions=st.integers(2, 40))
@settings(max_examples=150, deadline=None)
def test_what_is_called_evicted_never_hits_an_lru_cache(blocks_each: int, capacity: int, sessions: int) -> None:
    sizes = Geometry(prompt_tokens=blocks_each * 16, output_tokens=1, block_tokens=16, device_blocks=capacity)
    order = [session for _ in range(3) for session in range(sessions)]
    if sizes.evicts(sessions):
        assert lru_hits(sessions, blocks_each, capacity, order) == 0
    assert sizes.evicts(sizes.sessions_to_evict(1.0))
    assert not sizes.evicts(sizes.sessions_to_evict(1.0) - 1)
