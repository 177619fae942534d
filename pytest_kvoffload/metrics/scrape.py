"""One look at the meters of one or several servers: a :class:`~pytest_kvoffload.records.Snapshot`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone
from urllib.parse import urlsplit, urlunsplit

from pytest_kvoffload.errors import ScrapeError
from pytest_kvoffload.metrics.exposition import ExpositionError, parse_exposition
from pytest_kvoffload.metrics.fetch import MAX_BYTES, TIMEOUT_SECONDS, Reply, get_all
from pytest_kvoffload.records import Sample, SampleKind, Snapshot

_ACCEPT = "text/plain;version=0.0.4, application/openmetrics-text;version=1.0.0;q=0.5, */*;q=0.1"


def scrape(urls: Sequence[str], *, timeout_seconds: float = TIMEOUT_SECONDS, max_bytes: int = MAX_BYTES) -> Snapshot:
    """Read the metrics of every URL, at the same time.

    Args:
        urls: full metrics URLs (``http://host:8000/metrics``); duplicates are read once.
        timeout_seconds: for one server, everything together; parsing may take as long again.
        max_bytes: largest exposition accepted.

    Returns:
        One snapshot. Each sample carries the label ``endpoint``, the URL it came from (an ``endpoint`` label of the
        server's own becomes ``exported_endpoint``, as in Prometheus).

    Raises:
        ScrapeError: any of the URLs refused, timed out, sent something else than a complete exposition, or too much.
            Nothing is returned then: a sum over the servers that happened to answer would be a wrong number.
    """
    unique = list(dict.fromkeys(urls))
    if not unique:
        raise ScrapeError("no URL", "at least one metrics URL is needed")
    replies = get_all(unique, timeout_seconds=timeout_seconds, max_bytes=max_bytes, headers={"Accept": _ACCEPT})
    taken_at_seconds = time.monotonic()
    wall_time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    samples: list[Sample] = []
    families: dict[str, SampleKind] = {}
    for reply in replies:
        some, declared = _parse(reply, timeout_seconds)
        samples += (_at_endpoint(sample, reply.url) for sample in some)
        families |= declared
    return Snapshot(
        taken_at_seconds=taken_at_seconds,
        wall_time=wall_time,
        urls=tuple(unique),
        samples=tuple(samples),
        families=families,
    )


def metrics_url(url: str) -> str:
    """Return the metrics URL of a server: ``/metrics`` is added where the URL has no path, and ``http://`` if absent.

    A trailing ``/v1`` (the base URL that OpenAI clients are given) is replaced.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    path = parts.path.rstrip("/")
    if path in {"", "/v1"}:
        path = "/metrics"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _parse(reply: Reply, budget_seconds: float) -> tuple[list[Sample], dict[str, SampleKind]]:
    if reply.status != 200:
        hint = ""
        if reply.status == 404:
            hint = "; vLLM serves its metrics under /metrics"
        elif reply.status in {401, 403}:
            hint = "; the endpoint asks for credentials"
        raise ScrapeError(reply.url, f"HTTP {reply.status}{hint}")
    deadline = time.monotonic() + budget_seconds

    def tick() -> None:
        if time.monotonic() > deadline:
            raise ScrapeError(
                reply.url, f"parsing {len(reply.body)} bytes takes longer than {budget_seconds:g} s, given up"
            )

    try:
        return parse_exposition(reply.body, content_type=reply.content_type, tick=tick)
    except ExpositionError as error:
        raise ScrapeError(reply.url, str(error)) from error


def _at_endpoint(sample: Sample, url: str) -> Sample:
    labels = dict(sample.labels)
    if "endpoint" in labels:
        labels["exported_endpoint"] = labels.pop("endpoint")
    labels["endpoint"] = url
    return Sample(name=sample.name, labels=labels, value=sample.value, kind=sample.kind)
