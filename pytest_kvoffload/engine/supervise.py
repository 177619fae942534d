"""Starting a process under a guard of its own, which ends it, all its descendants and what they leave behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_kvoffload.engine import guard
from pytest_kvoffload.engine.masking import mask_command, secret_values
from pytest_kvoffload.engine.processes import Process
from pytest_kvoffload.engine.server import STOP_GRACE_SECONDS, Supervision


def start_supervised(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    scratch: Sequence[str],
    owner: Process,
    engine_id: str = "",
) -> tuple[subprocess.Popen[bytes], Supervision]:
    """Start a command whose end is the owner's end at the latest.

    Args:
        command: what to run; it is written, masked, as the first line of the log.
        env: its whole environment.
        log: absolute path; what the command prints goes there, without its secrets. Beside it the guard keeps
            ``.status.json`` and ``.guard.log``.
        scratch: directories that are removed when the command has ended.
        owner: the process whose death ends the command.
        engine_id: names the ``/dev/shm`` files to remove; empty for none.

    Returns:
        The guard's process, a child of this one, and how to watch and end the command.
    """
    status = log.with_suffix(".status.json")
    status.unlink(missing_ok=True)
    job = {
        "owner_pid": owner.pid,
        "owner_start": owner.start,
        "command": list(command),
        "env": dict(env),
        "cwd": str(log.parent),
        "scratch": list(scratch),
        "log": str(log),
        "status": str(status),
        "engine_id": engine_id,
        "grace": STOP_GRACE_SECONDS,
        # vLLM prints its arguments, the tier's keys among them, and an SDK's error may quote a URL with its password.
        "secrets": list(secret_values(command, env)),
    }
    with log.open("a", encoding="utf-8") as out:
        out.write(f"# {' '.join(mask_command(command))}\n")
    with log.with_suffix(".guard.log").open("wb") as guard_log:
        supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(guard.__file__))],
            stdin=subprocess.PIPE,
            stdout=guard_log,
            stderr=guard_log,
            start_new_session=True,
        )
    process = Process.of(supervisor.pid)
    assert supervisor.stdin is not None
    with supervisor.stdin as pipe:
        pipe.write(json.dumps(job).encode() + b"\n")
    return supervisor, Supervision(
        guard_pid=process.pid,
        guard_start=process.start,
        status_path=str(status),
        engine_id=engine_id,
        owner_pid=owner.pid,
        owner_start=owner.start,
    )


def reap(supervisor: subprocess.Popen[bytes] | None) -> None:
    """Collect a guard that was told to end, kill it where it does not; ``None`` is no child of this process."""
    if supervisor is None:
        return
    try:
        supervisor.wait(timeout=5)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()
