"""Which cores the ranks of a server compute on, on vLLM's CPU backend.

By itself vLLM takes one core fewer with a KV connector than without (it reserves a core for the transfers): arms would
differ in speed and, through the order of their sums, even in text. And on few cores it binds all data parallel ranks to
the same ones, where their threads wait for each other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pytest_kvoffload.engine.connectors.flags import flag_value

_TENSOR = ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp")
_DATA = ("--data-parallel-size", "-dp")


def data_parallel_size(words: tuple[str, ...]) -> int:
    """Return how many data parallel ranks the arguments ask for."""
    given = [value for flag in _DATA if (value := flag_value(words, flag)) is not None]
    return int(given[-1]) if given and given[-1].isdigit() and int(given[-1]) > 0 else 1


def bind_list(words: tuple[str, ...], cores: Sequence[int] | None = None) -> str | None:
    """Return the value of ``VLLM_CPU_OMP_THREADS_BIND``: one list of cores for each data parallel rank.

    One core is left for the API server, the engine cores and the client where there are more cores than ranks; with
    fewer cores than ranks, ranks share one. With tensor or pipeline parallel ranks vLLM chooses: ``None``.
    """
    if any(flag_value(words, flag) not in (None, "1") for flag in _TENSOR):
        return None
    allowed = sorted(os.sched_getaffinity(0)) if cores is None else sorted(cores)
    ranks = data_parallel_size(words)
    usable = allowed[:-1] if len(allowed) > ranks else allowed
    lists = [usable[rank::ranks] or [usable[rank % len(usable)]] for rank in range(ranks)]
    return "|".join(",".join(str(core) for core in one) for one in lists)
