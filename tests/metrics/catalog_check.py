"""Compares the metric data with what a server exposes; used on recorded pages and on the real engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pytest_kvoffload.catalog.metrics import MetricFact, MetricVariant, metrics_of
from pytest_kvoffload.records import Snapshot

_COMMON = {"model_name", "engine", "endpoint", "le"}


def differences(pages: Sequence[Snapshot], *, version: str, conditions: Collection[str]) -> list[str]:
    """Return where the data and a server's pages (the first one from right after boot) contradict each other.

    Args:
        pages: snapshots of one server, in order.
        version: of its vLLM.
        conditions: the keys of ``[conditions]`` that hold for it.
    """
    known = metrics_of("vllm", version)
    exposed = {name: kind for name, kind in pages[0].families.items() if _is_ours(name)}
    found = [
        f"{name} is exposed, but the data does not have it in {version}" for name in sorted(set(exposed) - set(known))
    ]
    for name, fact in sorted(known.items()):
        if (fact.condition in conditions) != (name in exposed):
            state = "is not exposed" if name not in exposed else "is exposed"
            found.append(f"{name} {state}, its condition is {fact.condition}")
        elif name in exposed:
            variant = fact.variant(version)
            assert variant is not None
            if variant.type != exposed[name]:
                found.append(f"{name} is a {exposed[name]}, the data says {variant.type}")
            found += _series_differences(fact, variant, pages)
    return found


def _series_differences(fact: MetricFact, variant: MetricVariant, pages: Sequence[Snapshot]) -> list[str]:
    found = []
    at_boot = bool(_label_sets(fact, pages[0]))
    if at_boot != (fact.appears == "boot"):
        found.append(f"{fact.name} {'has' if at_boot else 'has no'} series at boot, the data says {fact.appears}")
    for labels in {labels for page in pages for labels in _label_sets(fact, page)}:
        if variant.labels != ("*",) and labels != frozenset(variant.labels):
            found.append(f"{fact.name} has labels {sorted(labels)}, the data says {sorted(variant.labels)}")
    if fact.appears == "first_step" and not _label_sets(fact, pages[-1]):
        found.append(f"{fact.name} has no series after the first step")
    return found


def _label_sets(fact: MetricFact, page: Snapshot) -> set[frozenset[str]]:
    parts = {fact.name} if fact.variants[-1].type != "histogram" else {f"{fact.name}_count"}
    return {frozenset(set(s.labels) - _COMMON) for s in page.samples if s.name in parts}


def _is_ours(name: str) -> bool:
    return name.startswith("vllm:") and not name.endswith("_created")
