"""What ``pytest --kvoffload-gate`` reads of a run: which test took what, and what the command line leaves out."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pytest_kvoffload.gate.suite import Use
from pytest_kvoffload.records import EngineConfig, Measurement, WorkloadConfig, measurement_from_json, to_json

USES_FILE = "uses.jsonl"
_ENGINE_FIELDS = ("vllm_version", "max_model_len", "num_gpu_blocks", "python", "args", "env")
_SHOWN_FIELDS = ("vllm_version", "max_model_len", "num_gpu_blocks")


@dataclasses.dataclass(frozen=True, slots=True)
class Noted:
    """A test's question for a measurement, written down."""

    path: Path
    use: Use

    def taken(self, measurement: Measurement) -> None:
        """Add the file of the measurement that came of it."""
        file = Path(measurement.artefacts["measurement"]).name
        self.append(dataclasses.replace(self.use, file=file))

    def append(self, use: Use) -> None:
        """Add one line at once: several workers write to this file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, to_json(use) + b"\n")
        finally:
            os.close(descriptor)


class CommandPaths:
    """What the paths on the command line leave out."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        where = config.invocation_params.dir
        given = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
        self._by_name = bool(config.getoption("pyargs", False))
        pairs = [(word.partition("::")[0], word.partition("::")[2]) for word in given]
        self._given = [((where / path).resolve(), rest) for path, rest in pairs]
        ignored = [*(config.getoption("ignore", None) or ()), *(config.getoption("ignore_glob", None) or ())]
        self._ignored = [(where / path).resolve() for path in ignored]

    @property
    def narrow(self) -> bool:
        """Whether anything is left out: paths that are not the whole root directory, or ignored ones."""
        return bool(self._ignored) or any(path != self._root.resolve() for path, _ in self._given)

    def leave_out(self, test: str) -> bool:
        """Whether a test, by its node id, lies outside what the command line names."""
        path, _, name = test.partition("::")
        file = (self._root / path).resolve()
        if any(_under(file, ignored) or fnmatch(str(file), str(ignored)) for ignored in self._ignored):
            return True
        if not self._given or self._by_name:
            return False
        return not any(_under(file, place) and _named(name, rest) for place, rest in self._given)


def variant_of(workload: WorkloadConfig, engine: EngineConfig, *, usual: tuple[WorkloadConfig, EngineConfig]) -> str:
    """Say what a test overrides of the configuration, seed aside; empty where it overrides nothing."""
    return ", ".join([*_differ(workload, usual[0]), *_engine_differs(engine, usual[1])])


def read_uses(path: Path) -> tuple[list[Use], list[str]]:
    """Read which test asked for which measurement; a line that cannot be read is said."""
    import msgspec

    uses: list[Use] = []
    problems: list[str] = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], start=1):
        try:
            uses.append(msgspec.json.decode(line, type=Use))
        except msgspec.MsgspecError as error:
            problems.append(f"{path}, line {number}: {error}")
    return uses, problems


def read_measurements(run_dir: Path) -> tuple[dict[str, Measurement], list[str]]:
    """Read the measurements of a run by the names of their files."""
    found: dict[str, Measurement] = {}
    problems: list[str] = []
    for path in sorted((run_dir / "measurements").glob("*.json")):
        try:
            found[path.name] = measurement_from_json(path.read_bytes())
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {error}")
    return found, problems


def plain_id(nodeid: str) -> str:
    """Return a node id without the group that ``--dist loadgroup`` adds to it."""
    head, _, group = nodeid.rpartition("@")
    return head if head and not any(mark in group for mark in ("]", "::", "/")) else nodeid


def _differ(workload: WorkloadConfig, usual: WorkloadConfig) -> Iterable[str]:
    for name in (field.name for field in dataclasses.fields(usual)):
        value = getattr(workload, name)
        if name != "seed" and value != getattr(usual, name):
            yield f"{name}={value}"


def _engine_differs(engine: EngineConfig, usual: EngineConfig) -> Iterable[str]:
    """Name what differs; of arguments and environment variables, which may hold secrets, only a digest is shown."""
    for name in _ENGINE_FIELDS:
        value = getattr(engine, name)
        if value != getattr(usual, name):
            shown = value if name in _SHOWN_FIELDS else hashlib.sha256(repr(value).encode()).hexdigest()[:8]
            yield f"engine.{name}={shown}"


def _under(file: Path, place: Path) -> bool:
    return place == file or place in file.parents


def _named(name: str, asked: str) -> bool:
    return not asked or name == asked or name.startswith((f"{asked}::", f"{asked}["))
