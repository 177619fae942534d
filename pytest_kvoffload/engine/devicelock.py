"""One accelerator, one run: claims that keep two runs from measuring on the same device by accident.

Claims stand in one small JSON file in the cache directory, changed only under a file lock. A claim belongs to a run
(its owner process) and is valid while one of its holders lives: the process that boots, then each server's guard. So
several servers of one run may share a device, a claim survives a killed owner only as long as its server does, and
nothing has to be cleaned up by hand.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_kvoffload.engine.paths import cache_dir
from pytest_kvoffload.engine.processes import Process
from pytest_kvoffload.errors import ConfigError, EngineError

LOCK_ENV = "KVOFFLOAD_DEVICE_LOCK"
DEFAULT_WAIT_SECONDS = 1800.0
_POLL_SECONDS = 0.5
_PROGRESS_SECONDS = 10.0


def device_keys(*, cpu_platform: bool, env: Mapping[str, str]) -> tuple[str, ...]:
    """Name what a server will occupy: ``("cpu",)``, ``("gpu:0", "gpu:1")`` or ``("gpu:*",)`` for all there are."""
    if cpu_platform:
        return ("cpu",)
    visible = env.get("CUDA_VISIBLE_DEVICES") or env.get("HIP_VISIBLE_DEVICES") or ""
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return tuple(f"gpu:{name}" for name in names) or ("gpu:*",)


def lock_wait_seconds(env: Mapping[str, str] | None = None) -> float | None:
    """How long to wait for a device (``KVOFFLOAD_DEVICE_LOCK``: seconds, or ``off``); ``None`` means no lock.

    Raises:
        ConfigError: the variable is neither.
    """
    text = (os.environ if env is None else env).get(LOCK_ENV, "").strip().lower()
    if not text:
        return DEFAULT_WAIT_SECONDS
    if text in ("off", "no", "false", "none"):
        return None
    try:
        seconds = float(text)
        if not 0 <= seconds < float("inf"):
            raise ValueError
    except ValueError:
        raise ConfigError(
            section="environment", key=LOCK_ENV, got=repr(text), expected="seconds to wait, or off"
        ) from None
    return seconds


def claim(
    keys: tuple[str, ...],
    *,
    owner: Process,
    holder: Process,
    progress: Callable[[str], None] | None = None,
    wait_seconds: float | None,
    directory: Path | None = None,
) -> None:
    """Claim devices for a run, waiting while another run has one of them.

    Raises:
        EngineError: it was not free in time; the message names the holder.
    """
    if wait_seconds is None:
        return
    began = time.monotonic()
    next_word = 0.0
    while True:
        with _claims(directory) as claims:
            other = _conflict(claims, keys, owner)
            if other is None:
                _own_claim(claims, keys, owner)["holders"].append([holder.pid, holder.start])
                return
        waited = time.monotonic() - began
        who = f"pid {other['owner'][0]} ({other['command']})"
        if waited >= wait_seconds:
            raise EngineError(
                f"another run holds {_name(keys)}: {who}, for {time.time() - other['since']:.0f} s; waited "
                f"{waited:.0f} s. Wait for that run or stop it; {LOCK_ENV}=SECONDS waits longer, {LOCK_ENV}=off does "
                f"not lock at all (two runs on one device spoil each other's timings)"
            )
        if progress and waited >= next_word:
            progress(f"waiting for {_name(keys)}: held by {who}, {waited:.0f} s so far")
            next_word = waited + _PROGRESS_SECONDS
        time.sleep(_POLL_SECONDS)


def hand_over(owner: Process, old: Process, new: Process | None, *, directory: Path | None = None) -> None:
    """Replace one holder of the owner's claim by another (``None``: just let go)."""
    with _claims(directory) as claims:
        for entry in claims:
            if entry["owner"] == [owner.pid, owner.start] and [old.pid, old.start] in entry["holders"]:
                entry["holders"].remove([old.pid, old.start])
                if new is not None:
                    entry["holders"].append([new.pid, new.start])


@contextmanager
def _claims(directory: Path | None) -> Iterator[list[dict[str, Any]]]:
    """The living claims, to read and change; written back on the way out."""
    from filelock import FileLock

    place = directory or cache_dir() / "locks"
    place.mkdir(parents=True, exist_ok=True)
    file = place / "devices.json"
    with FileLock(str(place / "devices.lock")):
        try:
            claims = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            claims = []
        alive = []
        for entry in claims:
            entry["holders"] = [pair for pair in entry["holders"] if Process(*pair).alive()]
            if entry["holders"]:
                alive.append(entry)
        yield alive
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps([entry for entry in alive if entry["holders"]]), encoding="utf-8")
        temporary.replace(file)


def _conflict(claims: list[dict[str, Any]], keys: tuple[str, ...], owner: Process) -> dict[str, Any] | None:
    for entry in claims:
        if entry["owner"] != [owner.pid, owner.start] and any(_clash(a, b) for a in entry["keys"] for b in keys):
            return entry
    return None


def _clash(one: str, other: str) -> bool:
    if one == other:
        return True
    return "gpu:*" in (one, other) and one.startswith("gpu:") and other.startswith("gpu:")


def _own_claim(claims: list[dict[str, Any]], keys: tuple[str, ...], owner: Process) -> dict[str, Any]:
    for entry in claims:
        if entry["owner"] == [owner.pid, owner.start]:
            entry["keys"] = sorted({*entry["keys"], *keys})
            return entry
    entry = {
        "owner": [owner.pid, owner.start],
        "keys": list(keys),
        "command": owner.command(),
        "since": time.time(),
        "holders": [],
    }
    claims.append(entry)
    return entry


def _name(keys: tuple[str, ...]) -> str:
    return "the " + ", ".join(
        {"cpu": "CPU engine", "gpu:*": "GPUs"}.get(key, key.replace("gpu:", "GPU ")) for key in keys
    )
