"""The replicas behind one URL: data parallel ranks of one server, servers behind a router, or both.

vLLM labels every series with ``engine`` (the data parallel rank), a scrape adds ``endpoint`` (the metrics URL): the two
tell replicas apart. Each replica has a device cache of its own, and each has a tier of its own unless the tier lies
outside the process.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from urllib.parse import urlsplit

from pytest_kvoffload.errors import UsageError, did_you_mean
from pytest_kvoffload.metrics.hit_rate import HitRateResult, hit_rate
from pytest_kvoffload.metrics.meters import PROMPT_TOKENS, read_meters
from pytest_kvoffload.metrics.query import series
from pytest_kvoffload.records import Delta

EACH = "each"
"""In place of a replica's name: every one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One engine. Its name is the rank, or host and port (and rank) where there are several metrics endpoints."""

    name: str
    endpoint: str
    engine: str


def replicas(delta: Delta) -> tuple[Replica, ...]:
    """Return the engines that a delta knows, whether they served anything or not, in order."""
    places = sorted(
        {(s.labels.get("endpoint", ""), s.labels.get("engine", "")) for s in series(delta, PROMPT_TOKENS)},
        key=lambda place: (place[0], place[1].zfill(9)),
    )
    ranks = Counter(endpoint for endpoint, _ in places)
    return tuple(
        Replica(
            name=_name(endpoint, engine, several=len(ranks) > 1, ranks=ranks[endpoint]),
            endpoint=endpoint,
            engine=engine,
        )
        for endpoint, engine in places
    )


def find_replica(delta: Delta, name: str) -> Replica:
    """Return the replica of that name.

    Raises:
        UsageError: there is none; the text lists those that there are.
    """
    known = {replica.name: replica for replica in replicas(delta)}
    if name not in known:
        raise UsageError(
            f"unknown replica {name!r}{did_you_mean(name, known)}; there are {', '.join(known) or 'none'}"
            f" ({EACH!r} stands for every one)"
        )
    return known[name]


def of_replica(delta: Delta, replica: Replica) -> Delta:
    """Return what one replica did: its series, and those of its endpoint that belong to no engine (the process)."""
    kept = tuple(
        sample
        for sample in delta.samples
        if sample.labels.get("endpoint", "") == replica.endpoint
        and sample.labels.get("engine", replica.engine) == replica.engine
    )
    return dataclasses.replace(
        delta,
        samples=kept,
        restarts=tuple(endpoint for endpoint in delta.restarts if endpoint == replica.endpoint),
        resets=tuple(name for name in delta.resets if _mentions(name, replica)),
        vanished=tuple(name for name in delta.vanished if _mentions(name, replica)),
    )


def hit_rates(delta: Delta, *, vllm_version: str | None, tier: str | None = None) -> dict[str, HitRateResult]:
    """Return the hit rate of each replica by its name, over the prompt tokens that this replica served.

    Raises:
        UsageError: a tier that does not exist.
    """
    return {
        replica.name: hit_rate(read_meters(of_replica(delta, replica), vllm_version=vllm_version), tier)
        for replica in replicas(delta)
    }


def place_name(url: str) -> str:
    """Return host and port of a URL: what an engine behind a router is called."""
    return urlsplit(url).netloc.rpartition("@")[2] or url


def _name(endpoint: str, engine: str, *, several: bool, ranks: int) -> str:
    if not several:
        return engine or place_name(endpoint)
    return f"{place_name(endpoint)}/{engine}" if ranks > 1 else place_name(endpoint)


def _mentions(rendered: str, replica: Replica) -> bool:
    """Whether a series, rendered with its labels, is the replica's."""
    return f'endpoint="{replica.endpoint}"' in rendered and (
        'engine="' not in rendered or f'engine="{replica.engine}"' in rendered
    )
