"""Emptying a tier that vLLM's own reset does not reach, so that a cold phase is cold."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pytest_kvoffload.errors import WorkloadError
from pytest_kvoffload.metrics.scrape import scrape
from pytest_kvoffload.records import ServerInfo, TierClear
from pytest_kvoffload.workload.http import delete, post

_TIMEOUT_SECONDS = 60.0


def clear_tier(info: ServerInfo) -> None:
    """Empty a server's tier in every way that its connector named.

    Raises:
        WorkloadError: it was not emptied; a phase after it would not be cold.
    """
    for clear in info.clears:
        if clear.action in ("post", "delete"):
            _request(clear)
        elif clear.action == "empty_directory":
            _empty(Path(clear.target))
        elif clear.action == "new_server":
            _require_new(clear, info)
        else:
            _flush(clear.target)


def clear_words(clears: Sequence[TierClear]) -> str:
    """Say how a tier is emptied, for a note. URLs carry no credentials here."""
    words = {
        "post": "POST {}",
        "delete": "DELETE {}",
        "empty_directory": "emptying {}",
        "redis_flush": "flushing {}",
        "new_server": "starting a new server ({} cannot be emptied)",
    }
    return ", ".join(words[clear.action].format(_without_credentials(clear.target)) for clear in clears)


def no_cold_phase(info: ServerInfo) -> str:
    """Say why a cold phase is refused."""
    connector = (info.kv_transfer_config or {}).get("kv_connector", "its connector")
    reason = "nothing is known that empties it" if not info.clears else "the server has no developer mode (no reset)"
    return (
        f"the tier of {connector} cannot be made cold: its keys ignore a request's cache salt, and {reason}. What an "
        f"earlier run stored would count as this run's hits. Give the tier a directory, database or prefix of its own"
    )


def is_new(info: ServerInfo) -> bool:
    """Whether a server has not seen a prompt yet, so that a tier that began with it is empty."""
    return not any(s.value > 0 for s in scrape(info.metrics_urls).samples if s.name == "vllm:prompt_tokens_total")


def _require_new(clear: TierClear, info: ServerInfo) -> None:
    if not is_new(info):
        raise WorkloadError(
            f"the tier in {clear.target} cannot be emptied, and this server has served prompts already: boot a new one "
            f"for each measurement"
        )


def _request(clear: TierClear) -> None:
    import requests

    try:
        ask = post if clear.action == "post" else delete
        answer = ask(clear.target, timeout_seconds=_TIMEOUT_SECONDS)
    except requests.RequestException as error:
        raise WorkloadError(
            f"the tier was not cleared: {clear.action.upper()} {_without_credentials(clear.target)} failed "
            f"({type(error).__name__})"
        ) from None
    if answer.status_code >= 300:
        raise WorkloadError(
            f"the tier was not cleared: {clear.action.upper()} {_without_credentials(clear.target)} answered HTTP "
            f"{answer.status_code}: {answer.text[:200]}"
        )


def _empty(directory: Path) -> None:
    if not directory.exists():
        return
    try:
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
    except OSError as error:
        raise WorkloadError(f"the tier's directory {directory} was not emptied: {error}") from error


def _flush(url: str) -> None:
    try:
        import redis
    except ModuleNotFoundError:
        raise WorkloadError("the tier's redis cannot be cleared: pip install 'pytest-kvoffload[redis]'") from None
    try:
        with redis.Redis.from_url(url, socket_timeout=_TIMEOUT_SECONDS) as client:
            client.flushdb()
    except redis.RedisError as error:
        raise WorkloadError(f"the tier's redis was not cleared ({type(error).__name__})") from None


def _without_credentials(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else url
