"""What a running server says about itself, compared with what was asked of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_kvoffload.engine.masking import mask_value

if TYPE_CHECKING:
    import requests

SERVER_INFO_TIMEOUT_SECONDS = 60.0
"""The first ``/server_info`` collects facts about the machine with outside commands; it can take a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """Facts read from ``/version``, ``/v1/models``, ``/metrics`` and ``/server_info``; ``None`` where not told."""

    vllm_version: str | None
    models: tuple[str, ...]
    max_model_len: int | None
    block_size_tokens: int | None
    num_gpu_blocks: int | None
    """Blocks of one engine."""
    kv_transfer_config: Mapping[str, Any] | None
    developer_mode: bool
    cache_config: Mapping[str, str]
    engines: int = 1
    """Engines whose cache configuration the metrics show: data parallel ranks, times the endpoints."""


def local_session(*, trust_environment: bool = False) -> requests.Session:
    """An HTTP session; without ``trust_environment`` a proxy of the user's does not get between us and 127.0.0.1."""
    import requests

    session = requests.Session()
    session.trust_env = trust_environment
    return session


def read_back(url: str, metrics_urls: Iterable[str], session: requests.Session) -> ReadBack:
    """Ask a server about itself. What an endpoint does not answer is ``None``; nothing is raised for it."""
    version = _json(session, f"{url}/version")
    models = _json(session, f"{url}/v1/models")
    cards = models.get("data") if isinstance(models, dict) else None
    cards = [card for card in cards or [] if isinstance(card, dict)]
    info = _json(session, f"{url}/server_info?config_format=json", timeout=SERVER_INFO_TIMEOUT_SECONDS)
    config = info.get("vllm_config") if isinstance(info, dict) else None
    transfer = config.get("kv_transfer_config") if isinstance(config, dict) else None
    endpoints = [found for metrics_url in metrics_urls if (found := cache_configs(session, metrics_url))]
    cache = endpoints[0][0] if endpoints else {}
    blocks = _int(cache.get("num_gpu_blocks"))
    return ReadBack(
        vllm_version=version.get("version") if isinstance(version, dict) else None,
        models=tuple(str(card.get("id")) for card in cards),
        max_model_len=_int(cards[0].get("max_model_len")) if cards else None,
        block_size_tokens=_int(cache.get("block_size")),
        # With data parallel ranks each of them shows the sum of all (v1/engine/core_client.py, 0.27.1 to 0.32.0).
        num_gpu_blocks=None if blocks is None else blocks // len(endpoints[0]),
        kv_transfer_config=transfer if isinstance(transfer, dict) else None,
        developer_mode=isinstance(config, dict),
        cache_config=cache,
        engines=max(1, sum(len(found) for found in endpoints)),
    )


def cache_config_info(session: requests.Session, metrics_url: str) -> dict[str, str]:
    """Return the labels of the first ``vllm:cache_config_info``, empty when the endpoint does not have it."""
    return next(iter(cache_configs(session, metrics_url)), {})


def cache_configs(session: requests.Session, metrics_url: str) -> list[dict[str, str]]:
    """Return the labels of ``vllm:cache_config_info``, one for each engine behind the endpoint."""
    import requests
    from prometheus_client.parser import text_string_to_metric_families

    try:
        answer = session.get(metrics_url, timeout=10)
        answer.raise_for_status()
        return [
            dict(sample.labels)
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
            if sample.name == "vllm:cache_config_info"
        ]
    except (requests.RequestException, ValueError):
        return []


def differences(asked: Mapping[str, Any] | None, read: ReadBack) -> tuple[str, ...]:
    """Say in one sentence each where the effective transfer configuration is not what was asked for."""
    if not read.developer_mode:
        return ()
    if asked is None:
        if read.kv_transfer_config and read.kv_transfer_config.get("kv_connector"):
            name = read.kv_transfer_config["kv_connector"]
            return (f"no connector was asked for, but the server runs {name}",)
        return ()
    if read.kv_transfer_config is None:
        return (f"{asked.get('kv_connector')} was asked for, but the server runs no connector",)
    return tuple(_compare("", mask_value(asked), mask_value(read.kv_transfer_config)))


def _compare(path: str, asked: Any, effective: Any) -> Iterable[str]:
    if isinstance(asked, Mapping) and isinstance(effective, Mapping):
        for key, value in asked.items():
            where = f"{path}.{key}" if path else str(key)
            if key not in effective:
                yield f"{where}: {value!r} was asked for, but the server does not have the key"
            else:
                yield from _compare(where, value, effective[key])
    elif asked != effective and str(asked) != str(effective):
        yield f"{path}: {asked!r} was asked for, but the server has {effective!r}"


def _json(session: requests.Session, url: str, timeout: float = 10.0) -> Any:
    import requests

    try:
        answer = session.get(url, timeout=timeout)
        return answer.json() if answer.status_code == 200 else None
    except (requests.RequestException, ValueError):
        return None


def _int(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
