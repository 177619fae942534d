"""Two data parallel ranks in one exposition: each has its own delta, and a restart of one does not hide in the sum."""

from __future__ import annotations

from expositions import URL, snapshot

from pytest_kvoffload.metrics.delta import delta
from pytest_kvoffload.metrics.meters import read_meters
from pytest_kvoffload.metrics.replicas import of_replica, replicas

HEAD = """\
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1000
"""
FAMILIES = {
    "vllm:prompt_tokens_total": "",
    "vllm:prompt_tokens_by_source_total": ',source="external_kv_transfer"',
    "vllm:kv_offload_store_bytes_total": "",
}


def ranks(*values: tuple[int, int, int]) -> str:
    """An exposition with these prompt tokens, external hit tokens and stored bytes, one triple a rank."""
    lines = []
    for position, (name, labels) in enumerate(FAMILIES.items()):
        lines.append(f"# TYPE {name} counter")
        for rank, triple in enumerate(values):
            if position < 2 or triple[position]:  # the series of stores comes with the first one
                lines.append(f'{name}{{engine="{rank}"{labels}}} {triple[position]}')
    return HEAD + "\n".join(lines) + "\n"


def test_each_rank_has_its_own_delta() -> None:
    found = delta(snapshot(ranks((100, 10, 5), (50, 0, 0))), snapshot(ranks((300, 110, 5), (80, 0, 7)), at_seconds=2.0))
    assert [(one.name, one.endpoint) for one in replicas(found)] == [("0", URL), ("1", URL)]
    first, second = (read_meters(of_replica(found, one), vllm_version="0.32.0") for one in replicas(found))
    assert (first.prompt_tokens.value, first.hit_tokens["external"].value, first.store_bytes.value) == (200, 100, 0)
    assert (second.prompt_tokens.value, second.hit_tokens["external"].value, second.store_bytes.value) == (30, 0, 7)


def test_a_rank_whose_counters_fell_is_a_lower_bound_by_itself() -> None:
    found = delta(
        snapshot(ranks((100, 10, 5), (500, 400, 9))), snapshot(ranks((300, 110, 5), (20, 5, 9)), at_seconds=2.0)
    )
    first, second = (of_replica(found, one) for one in replicas(found))
    assert first.resets == ()
    assert len(second.resets) == 2
    assert read_meters(first, vllm_version=None).caveats == ()
    assert "counters went back" in read_meters(second, vllm_version=None).caveats[0]


def test_an_idle_server_has_its_ranks_too() -> None:
    idle = snapshot(ranks((0, 0, 0), (0, 0, 0)))
    assert [one.name for one in replicas(delta(idle, idle))] == ["0", "1"]
    assert replicas(delta(snapshot(HEAD), snapshot(HEAD))) == ()
