"""The same snapshots from a Prometheus server: raw series at an instant, never its ``increase`` or ``rate``.

``increase`` extrapolates to the edges of its range and so turns 3 requests into 3.2. Fetching the series as they were
at both instants keeps the counts whole, and the deltas, resets and restarts are worked out as for scrapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from pytest_kvoffload.catalog.metrics import metric_fact
from pytest_kvoffload.errors import ScrapeError
from pytest_kvoffload.metrics.delta import PROCESS_START
from pytest_kvoffload.metrics.exposition import family_name
from pytest_kvoffload.metrics.fetch import MAX_BYTES, get
from pytest_kvoffload.records import Sample, SampleKind, Snapshot

NAMES = f"vllm:.*|lmcache.*|{PROCESS_START}"
_KINDS: dict[str, SampleKind] = {"counter": "counter", "gauge": "gauge", "histogram": "histogram", "summary": "summary"}


def snapshots_between(
    url: str, *, start_seconds: float, end_seconds: float, selector: str = "", timeout_seconds: float = 15.0
) -> tuple[Snapshot, Snapshot, tuple[str, ...]]:
    """Return the series at both ends of a window, and notes on what had to be left out.

    Args:
        url: the server, ``http://host:9090``.
        start_seconds: beginning of the window, seconds since the epoch.
        end_seconds: its end.
        selector: label matchers that choose the servers, ``job="vllm",namespace="prod"``.
        timeout_seconds: for each of the three requests.

    Returns:
        Two snapshots whose samples carry the label ``endpoint`` (job and instance). An instance that is in the second
        snapshot only is left out and noted unless its process started within the window: the rise of its counters
        would be that of its whole life.

    Raises:
        ScrapeError: no answer, an error of the query (the message is Prometheus'), or no vLLM series at all.
    """
    base = (url if "://" in url else f"http://{url}").rstrip("/")
    kinds = _kinds(base, timeout_seconds)
    before = _snapshot(base, start_seconds, selector, kinds, timeout_seconds)
    after = _snapshot(base, end_seconds, selector, kinds, timeout_seconds)
    if not any(s.name.startswith("vllm:") for s in after.samples):
        where = f"{{{selector}}}" if selector else "any label"
        raise ScrapeError(base, f"Prometheus has no vllm: series with {where} at {after.wall_time}")
    if not any(s.name.startswith("vllm:") for s in before.samples):
        raise ScrapeError(base, f"Prometheus has vllm: series at {after.wall_time}, but none yet at {before.wall_time}")
    kept, notes = _without_strangers(before, after, start_seconds)
    return before, kept, notes


def _without_strangers(before: Snapshot, after: Snapshot, start_seconds: float) -> tuple[Snapshot, tuple[str, ...]]:
    known = {s.labels["endpoint"] for s in before.samples}
    young = {s.labels["endpoint"] for s in after.samples if s.name == PROCESS_START and s.value >= start_seconds}
    strangers = {s.labels["endpoint"] for s in after.samples} - known - young
    notes = tuple(f"{name} was not scraped yet at the beginning of the window: left out" for name in sorted(strangers))
    return replace(after, samples=tuple(s for s in after.samples if s.labels["endpoint"] not in strangers)), notes


def _snapshot(
    base: str, at_seconds: float, selector: str, kinds: Mapping[str, SampleKind], timeout_seconds: float
) -> Snapshot:
    inside = ",".join(part for part in (f'__name__=~"{NAMES}"', selector.strip().strip("{}")) if part)
    result = _ask(base, "query", {"query": f"{{{inside}}}", "time": f"{at_seconds:.3f}"}, timeout_seconds)
    found = result.get("result", []) if isinstance(result, dict) else []
    samples = []
    for series in found:
        labels = dict(series["metric"])
        name = labels.pop("__name__", "")
        labels["endpoint"] = "/".join(part for part in (labels.get("job", ""), labels.get("instance", "")) if part)
        samples.append(Sample(name=name, labels=labels, value=float(series["value"][1]), kind=_kind(name, kinds)))
    return Snapshot(
        taken_at_seconds=at_seconds,
        wall_time=datetime.fromtimestamp(at_seconds, timezone.utc).isoformat(timespec="seconds"),
        urls=(base,),
        samples=tuple(samples),
        families=kinds,
    )


def _kinds(base: str, timeout_seconds: float) -> dict[str, SampleKind]:
    """Return the declared families that Prometheus remembers of its targets, those without a series included."""
    metadata = _ask(base, "metadata", {}, timeout_seconds)
    kinds: dict[str, SampleKind] = {}
    for name, entries in (metadata if isinstance(metadata, dict) else {}).items():
        if name.startswith(("vllm:", "lmcache")) and not name.endswith("_created") and entries:
            kind = _KINDS.get(entries[0].get("type", ""), "unknown")
            kinds[family_name(name, kind)] = kind
    return kinds


def _kind(name: str, kinds: Mapping[str, SampleKind]) -> SampleKind:
    """Return the kind of a series; a server whose metadata is gone still has the catalog."""
    for suffix in ("_bucket", "_count", "_sum"):
        base = name.removesuffix(suffix)
        fact = metric_fact(base)
        if base != name and (kinds.get(base) == "histogram" or (fact and fact.variants[-1].type == "histogram")):
            return "histogram"
    if name in kinds:
        return kinds[name]
    fact = metric_fact(name)
    return fact.variants[-1].type if fact is not None and fact.name == name else "gauge"


def _ask(base: str, what: str, params: Mapping[str, str], timeout_seconds: float) -> Any:
    url = f"{base}/api/v1/{what}"
    reply = get(url, timeout_seconds=timeout_seconds, max_bytes=MAX_BYTES, params=params)
    try:
        answer = json.loads(reply.body)
    except ValueError as error:
        raise ScrapeError(url, f"HTTP {reply.status} without JSON: not a Prometheus server's API") from error
    if not isinstance(answer, dict) or answer.get("status") != "success":
        text = str(answer.get("error", answer) if isinstance(answer, dict) else answer)[:300]
        raise ScrapeError(url, f"the query failed: {text}")
    return answer.get("data")
