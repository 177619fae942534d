"""Baselines: what an arm did when it was good, in a file that can be committed.

One file per runner, model, engine and connector. It holds the newest run in full (so that the gate can pair its
requests with a new run's), a rolling history of numbers, and an anchor that never moves by itself: a history that
creeps by a little each time is compared with where it began.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_kvoffload.errors import IncomparableError, UsageError
from pytest_kvoffload.gate.comparable import tier_never_reached
from pytest_kvoffload.gate.readings import counted
from pytest_kvoffload.gate.samples import DEFAULT_PHASE, Block, latencies
from pytest_kvoffload.records import Measurement, ModelConfig, to_json
from pytest_kvoffload.stats import quantile, smallest_n

BASELINE_SCHEMA_VERSION = 1
BASELINE_DIR = "kvoffload-baselines"
"""The folder of baselines, beside the configuration."""
HISTORY_LIMIT = 100
"""Entries kept; the anchor is kept beside them."""
QUANTILES = (0.5, 0.95, 0.99)
HIT_TIERS = (None, "device", "external", "host", "disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineKey:
    """What a baseline belongs to. A run with another key is never compared with it."""

    runner: str
    model: str
    engine: str
    connector: str
    variant: str = ""
    """What a test overrides of the configuration, such as ``sessions=24``; empty where it overrides nothing."""

    @property
    def file_name(self) -> str:
        """Name of the file: the connector, and a digest of the rest."""
        safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in self.connector)
        words = dataclasses.astuple(self)
        digest = hashlib.sha256(json.dumps(words if self.variant else words[:-1]).encode()).hexdigest()
        return f"{safe}-{digest[:12]}.json"

    @property
    def label(self) -> str:
        """The arm's name in a verdict, where runner, model and engine are understood."""
        return f"{self.connector} ({self.variant})" if self.variant else self.connector

    def __str__(self) -> str:
        return f"connector {self.label}, model {self.model}, engine {self.engine}, runner {self.runner}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The numbers of one recorded run."""

    recorded_at: str
    commit: str | None
    configuration: str
    """Digest of the connector's configuration."""
    vllm: str | None
    seed: int
    boots: int
    requests: int
    metrics: Mapping[str, float]
    """By the name that a threshold uses (``restored.ttft_p99``): seconds, shares, counts."""

    @property
    def size(self) -> str:
        """How much it rests on, in words."""
        return f"{self.requests} requests over {self.boots} boot{'s' if self.boots != 1 else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A baseline file."""

    key: BaselineKey
    anchor: Entry
    history: tuple[Entry, ...]
    """Oldest first; the last belongs to ``blocks``."""
    blocks: tuple[Block, ...]
    schema_version: int = BASELINE_SCHEMA_VERSION

    @property
    def newest(self) -> Entry:
        """The run that the gate compares with."""
        return self.history[-1]


def model_name(model: ModelConfig) -> str:
    """Return what a key calls a model: its path or name, or the recipe of the generated one."""
    recipe = ", ".join(f"{key}={value}" for key, value in sorted(model.tiny.items()))
    return model.path or model.served_name or ("generated" + (f" ({recipe})" if recipe else ""))


def metrics_of(blocks: Sequence[Block]) -> dict[str, float]:
    """Return every number that a run can carry: quantiles with enough requests, hit rates that exist, counts."""
    found: dict[str, float] = {}
    for phase in blocks[0].measurement.phase_names if blocks else ():
        for metric in ("ttft", "e2e"):
            try:
                times = latencies(blocks, phase=phase, metric=metric)
            except (IncomparableError, KeyError):
                continue
            for q in QUANTILES:
                if len(times) >= smallest_n(q):
                    found[f"{phase}.{metric}_p{q * 100:g}"] = quantile(times, q)
        for tier in HIT_TIERS:
            rate = counted(blocks, metric="hit_rate", phase=phase, tier=tier)
            if not isinstance(rate, str):
                found[".".join(part for part in (phase, tier, "hit_rate") if part)] = rate
        for metric in ("failed_requests", "preemptions"):
            value = counted(blocks, metric=metric, phase=phase)
            if not isinstance(value, str):
                found[f"{phase}.{metric}"] = value
    return found


def entry_of(blocks: Sequence[Block], *, commit: str | None) -> Entry:
    """Summarise a run.

    Raises:
        IncomparableError: nothing was measured, a request failed, or the tier was never reached: such a run is no
            baseline.
    """
    if not blocks:
        raise IncomparableError("nothing was measured")
    silent = tier_never_reached(blocks) if DEFAULT_PHASE in blocks[0].measurement.phase_names else None
    if silent:
        raise IncomparableError(f"no baseline: {silent}")
    for block in blocks:
        failed = [s for p in block.measurement.phases for s in p.samples if not s.ok]
        if failed or not block.measurement.complete:
            why = f"{len(failed)} failed requests, the first: {failed[0].error}" if failed else "it is not complete"
            raise IncomparableError(f"block {block.block} cannot be a baseline: {why}")
    first = blocks[0].measurement
    return Entry(
        recorded_at=first.started_at,
        commit=commit,
        configuration=configuration_digest(first),
        vllm=first.server.vllm_version,
        seed=first.workload.seed,
        boots=len({block.boot for block in blocks}),
        requests=max(sum(len(b.measurement.phase(p).samples) for b in blocks) for p in first.phase_names),
        metrics=metrics_of(blocks),
    )


def configuration_digest(measurement: Measurement) -> str:
    """Return a digest of the connector's configuration."""
    return hashlib.sha256(to_json(measurement.connector)).hexdigest()[:12]


def updated(
    old: Baseline | None, key: BaselineKey, blocks: Sequence[Block], *, commit: str | None, anchor: bool = False
) -> Baseline:
    """Return the baseline with a run added; ``anchor`` makes that run the new anchor."""
    entry = entry_of(blocks, commit=commit)
    kept = tuple(_trim(block) for block in blocks)
    if old is None:
        return Baseline(key=key, anchor=entry, history=(entry,), blocks=kept)
    history = (*old.history, entry)[-HISTORY_LIMIT:]
    return Baseline(key=key, anchor=entry if anchor else old.anchor, history=history, blocks=kept)


def missing(baseline: Sequence[Block], run: Sequence[Block]) -> tuple[str, ...]:
    """Return the measurements that a baseline has and a run has not, over the same blocks."""
    numbers = {block.block for block in run}
    before = metrics_of([block for block in baseline if block.block in numbers])
    return tuple(sorted(set(before) - set(metrics_of(run))))


def save(folder: Path, baseline: Baseline) -> Path:
    """Write a baseline and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / baseline.key.file_name
    path.write_bytes(to_json(baseline, indent=1) + b"\n")
    return path


def load(path: Path) -> Baseline:
    """Read a baseline file.

    Raises:
        UsageError: it cannot be read, is no baseline, or is of another schema.
    """
    import msgspec

    try:
        head = msgspec.json.decode(path.read_bytes())
        version = head.get("schema_version") if isinstance(head, dict) else None
        if version != BASELINE_SCHEMA_VERSION:
            raise UsageError(f"{path}: not a baseline of schema {BASELINE_SCHEMA_VERSION} (it says {version!r})")
        return msgspec.convert(head, Baseline)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path}: not a baseline file: {error}") from error


def load_all(folder: Path) -> list[Baseline]:
    """Read every baseline of a folder, by file name."""
    return [load(path) for path in sorted(folder.glob("*.json"))]


def find(folder: Path, key: BaselineKey) -> Baseline:
    """Return the baseline of a key.

    Raises:
        IncomparableError: there is none; the message says what there is, and in what it differs.
    """
    path = folder / key.file_name
    if path.exists():
        return load(path)
    near = [f"{other.file_name}: {', '.join(_unlike(other, key))}" for other in (b.key for b in load_all(folder))] or [
        "no baseline at all"
    ]
    raise IncomparableError(
        f"no baseline for {key} in {folder}; there is {'; '.join(near)}. Record one with kvoffload baseline update"
    )


def _unlike(other: BaselineKey, key: BaselineKey) -> list[str]:
    pairs = ((f.name, getattr(other, f.name), getattr(key, f.name)) for f in dataclasses.fields(key))
    return [f"{name} {theirs!r}, here {ours!r}" for name, theirs, ours in pairs if theirs != ours]


def _trim(block: Block) -> Block:
    """Drop what no comparison reads: histogram buckets, and paths of the machine that measured."""
    measurement = block.measurement
    phases = tuple(
        dataclasses.replace(
            phase,
            delta=dataclasses.replace(
                phase.delta, samples=tuple(s for s in phase.delta.samples if not s.name.endswith("_bucket"))
            ),
        )
        for phase in measurement.phases
    )
    server = dataclasses.replace(measurement.server, log_path=None, pid=None, command=(), environment={})
    return dataclasses.replace(
        block, measurement=dataclasses.replace(measurement, phases=phases, server=server, artefacts={})
    )
