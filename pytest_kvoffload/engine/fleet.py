"""The engines behind a router.

A router answers like a vLLM server and is none. vllm-router 0.1.17 hands ``GET /metrics``, ``GET /server_info`` and
``POST /reset_prefix_cache`` to one engine in turn, the last without its query: what is read there changes from one
scrape to the next, and a reset empties one engine's device cache and no tier. So every engine is read and reset itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_kvoffload.engine.masking import mask_text
from pytest_kvoffload.engine.readback import ReadBack, read_back
from pytest_kvoffload.errors import EngineError
from pytest_kvoffload.records import EngineConfig

if TYPE_CHECKING:
    import requests

_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What stands behind a URL. Without a router ``engine_urls`` is empty, and there is one answer."""

    engine_urls: tuple[str, ...]
    metrics_urls: tuple[str, ...]
    answers: tuple[ReadBack, ...]

    @property
    def replicas(self) -> int:
        """All engines, data parallel ranks included."""
        return sum(answer.engines for answer in self.answers)

    @property
    def resets(self) -> bool:
        """Whether every engine can be reset."""
        return all(answer.developer_mode for answer in self.answers)


def find_fleet(engine: EngineConfig, url: str, session: requests.Session) -> Fleet:
    """Ask who answers behind a URL: what the configuration names, else what the router lists, else the URL itself.

    Raises:
        EngineError: an engine cannot be reached, the router has more engines than are named, or they differ.
    """
    listed = workers(url, session)
    named = tuple(name.rstrip("/") for name in engine.engine_urls)
    urls = named or _bases(engine.metrics_urls, url, session) or listed
    if len(urls) < len(listed):
        raise EngineError(
            f"the router at {mask_text(url)} has {len(listed)} engines ({_shown(listed)}), and "
            f"{len(urls)} are named ({_shown(urls)}): what the others do would be missing from every number. "
            "Name all in [engine] engine_urls"
        )
    if not urls:
        metrics = engine.metrics_urls or (f"{url}/metrics",)
        return Fleet(engine_urls=(), metrics_urls=metrics, answers=(read_back(url, metrics, session),))
    _check_reachable(urls, url, session)
    metrics = engine.metrics_urls or tuple(f"{name}/metrics" for name in urls)
    answers = tuple(read_back(name, (f"{name}/metrics",), session) for name in urls)
    _check_alike(urls, answers)
    return Fleet(engine_urls=urls, metrics_urls=metrics, answers=answers)


def workers(url: str, session: requests.Session) -> tuple[str, ...]:
    """Return the engines that a vllm-router names, empty for anything else.

    With ``--intra-node-data-parallel-size`` it names each rank (``http://host:port@1``): an engine is taken once.
    """
    import requests

    try:
        answer = session.get(f"{url}/list_workers", timeout=_TIMEOUT_SECONDS)
        body = answer.json() if answer.status_code == 200 else None
    except (requests.RequestException, ValueError):
        return ()
    found = body.get("urls") if isinstance(body, dict) else None
    if not isinstance(found, list):
        return ()
    # Sorted: the router lists them in any order.
    return tuple(sorted({_without_rank(name) for name in found if isinstance(name, str)}))


def differences_between(urls: Sequence[str], answers: Sequence[ReadBack]) -> tuple[str, ...]:
    """Say where the engines of a fleet are not alike, one sentence each."""
    first = answers[0]
    found = []
    for url, answer in zip(urls[1:], answers[1:], strict=True):
        for what, one, other in (
            ("vLLM", first.vllm_version, answer.vllm_version),
            ("block_size", first.block_size_tokens, answer.block_size_tokens),
            ("num_gpu_blocks", first.num_gpu_blocks, answer.num_gpu_blocks),
            ("connector", _connector(first), _connector(answer)),
        ):
            if one != other:
                found.append(f"{what}: {mask_text(urls[0])} has {one}, {mask_text(url)} has {other}")
    return tuple(found)


def _bases(metrics_urls: Sequence[str], url: str, session: requests.Session) -> tuple[str, ...]:
    """Return the servers whose metrics are named, where they are engines beside the URL (and no LMCache server)."""
    bases = dict.fromkeys(name.removesuffix("/metrics") for name in metrics_urls if name.endswith("/metrics"))
    found = tuple(base for base in bases if base != url and _status(f"{base}/v1/models", session) == 200)
    return found if url not in bases else ()


def _check_reachable(urls: Sequence[str], router: str, session: requests.Session) -> None:
    for url in urls:
        status = _status(f"{url}/health", session)
        if status != 200:
            seen = "does not answer" if status is None else f"answers /health with {status}"
            raise EngineError(
                f"the engine {mask_text(url)} behind {mask_text(router)} {seen}: its metrics must be read and its "
                "cache reset from here. Name addresses that can be reached in [engine] engine_urls"
            )


def _check_alike(urls: Sequence[str], answers: Sequence[ReadBack]) -> None:
    models = {frozenset(answer.models) for answer in answers}
    if len(models) > 1:
        told = "; ".join(f"{mask_text(u)}: {', '.join(a.models)}" for u, a in zip(urls, answers, strict=True))
        raise EngineError(f"the engines serve different models ({told}): one measurement is of one model")


def _status(url: str, session: requests.Session) -> int | None:
    import requests

    try:
        return session.get(url, timeout=_TIMEOUT_SECONDS).status_code
    except requests.RequestException:
        return None


def _connector(answer: ReadBack) -> object:
    return (answer.kv_transfer_config or {}).get("kv_connector")


def _without_rank(url: str) -> str:
    base, at, rank = url.rpartition("@")
    return (base if at and rank.isdigit() else url).rstrip("/")


def _shown(urls: Sequence[str]) -> str:
    return ", ".join(mask_text(url) for url in urls) or "none"
