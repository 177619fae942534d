"""The frozen records that travel from room to room.

Nothing here does any work: a record is validated by whoever builds it, handed on, and never changed. Times are
seconds, sizes are bytes, lengths are tokens, and the unit stands in the name. A measurement is written to JSON
with :func:`to_json` and read back with :func:`measurement_from_json`; ``SCHEMA_VERSION`` grows when a field
changes its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

SCHEMA_VERSION = 1

EngineKind: TypeAlias = Literal["cpu", "local", "attach"]
PhaseName: TypeAlias = str
"""``cold`` (first sight), ``resident`` (the device still holds it), ``restored`` (evicted, served by a tier)."""

SampleKind: TypeAlias = Literal["counter", "gauge", "histogram", "summary", "unknown"]


# ------------------------------------------------------------------------------------------ configuration
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The model under test: ``path`` is a directory or a hub name, ``None`` means the generated test model."""

    path: str | None = None
    served_name: str | None = None
    """Name under which it is served; ``None`` is vLLM's own choice."""
    tiny: Mapping[str, int] = field(default_factory=dict)
    """Overrides of the generated model's recipe (``layers``, ``hidden_size``, ``seed`` ...)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Which vLLM runs the server and with what."""

    kind: EngineKind = "cpu"
    """``cpu``: real vLLM without a GPU, managed; ``local``: an interpreter of yours; ``attach``: a running server."""
    python: str | None = None
    """Interpreter that has vllm (kind ``local``); ``None`` is the running one."""
    vllm_version: str | None = None
    """Version of the managed engine (kind ``cpu``); ``None`` is the pinned default."""
    url: str | None = field(default=None, repr=False)
    """Base URL of a running server (kind ``attach``)."""
    metrics_urls: tuple[str, ...] = field(default=(), repr=False)
    """Metrics endpoints (kind ``attach``); empty means ``url`` + ``/metrics``, or those of the engines behind it."""
    engine_urls: tuple[str, ...] = ()
    """The engines behind a router (kind ``attach``); empty means those that the router or ``metrics_urls`` name."""
    kv_events: bool = False
    """Listen to the server's KV cache events (blocks stored and removed, by medium)."""
    kv_event_endpoints: tuple[str, ...] = ()
    """ZMQ endpoints to listen to (kind ``attach``); empty means those that the server names (vLLM 0.31 and later)."""
    args: tuple[str, ...] = field(default=(), repr=False)
    """Further vLLM arguments, passed through as they are."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables of the server."""
    max_model_len: int | None = None
    """``--max-model-len``; ``None`` leaves it to vLLM."""
    num_gpu_blocks: int | None = None
    """``--num-gpu-blocks-override``; ``None`` leaves it to vLLM (kind ``cpu`` defaults to 80)."""
    boot_timeout_seconds: float = 600.0
    request_timeout_seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfig:
    """One named connector under test: an arm of the comparison.

    ``kind`` names a connector kind of ``engine/connectors`` (``recompute``, ``native``, ``raw`` ...);
    ``options`` are that record's own keys, already validated. Options, arguments and
    environment may hold keys of a tier: they are not in the ``repr``, which pytest prints with a failing test.
    """

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierClear:
    """One way to empty a tier that vLLM's own reset does not reach.

    ``post`` and ``delete`` send such a request to the URL ``target``; ``empty_directory`` removes what is in the
    directory ``target``; ``redis_flush`` empties the database at the ``redis://`` URL ``target``; ``new_server`` says
    that only a new server (and new processes beside it) has an empty tier: ``target`` is what the tier lies in.
    """

    action: Literal["post", "delete", "empty_directory", "redis_flush", "new_server"]
    target: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """A seeded shared-prefix workload. Lengths are tokens."""

    mode: str = "restore"
    """Warm-up mode; ``restore`` is cold, reset of the device, restored."""
    seed: int = 0
    """Of prompts and arrivals: equal seeds send equal requests."""
    sessions: int | None = None
    """Number of distinct prefixes; ``None`` sizes it so that the working set exceeds the device cache."""
    prefix_tokens: int = 2048
    """Length of the prefix that the requests of a session share."""
    suffix_tokens: int = 16
    """Length of what follows the prefix and is each request's own."""
    output_tokens: int = 8
    """Tokens to generate, at temperature 0."""
    turns: int = 1
    """Requests of one session (mode ``chat``: each adds to the history)."""
    overflow: float = 1.5
    """Working set over device cache when ``sessions`` is ``None``; must exceed 1 to prove eviction."""
    concurrency: int = 1
    """Requests in flight at a time (closed loop)."""
    rate_per_second: float | None = None
    """Open Poisson arrivals instead of a closed loop."""
    repeats: int = 1
    """How often each session is revisited in the restored phase."""
    request_log: str | None = None
    """A JSONL request log to replay instead of generated prompts."""
    cache_salt: str | None = None
    """Sent with every request. Two servers find each other's KV in a shared tier only under the same salt; ``None``
    is a fresh one for each measurement where older KV could else be hits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVOffloadConfig:
    """Everything ``kvoffload.toml`` or ``[tool.kvoffload]`` says, with defaults filled in."""

    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    connectors: Mapping[str, ConnectorConfig] = field(default_factory=dict)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    thresholds: tuple[str, ...] = ()
    """Threshold expressions, verbatim; ``gate/thresholds.py`` parses them."""
    gate: Mapping[str, Any] = field(default_factory=dict)
    lint: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    """The file it came from, ``None`` for defaults."""


# ------------------------------------------------------------------------------------------------- server
@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventSource:
    """Where one engine publishes its KV cache events: a ZMQ endpoint to connect to."""

    replica: str
    """The data parallel rank, or the engine's host and port behind a router."""
    endpoint: str
    replay_endpoint: str | None = None
    """Where batches that were missed can be asked for again."""
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What the running server says about itself (``/version``, ``cache_config_info``, ``/server_info``)."""

    url: str
    metrics_urls: tuple[str, ...]
    engine_kind: EngineKind
    model: str
    vllm_version: str | None
    max_model_len: int | None
    block_size_tokens: int | None
    num_gpu_blocks: int | None
    kv_transfer_config: Mapping[str, Any] | None = None
    """The effective configuration read back; ``None`` when the server does not tell (no developer mode)."""
    differences: tuple[str, ...] = ()
    """Where the effective configuration is not what was asked for, one sentence each."""
    resets: bool = False
    """Whether ``/reset_prefix_cache`` is available."""
    clears: tuple[TierClear, ...] = field(default=(), repr=False)
    """How its tier is emptied where that reset does not do it."""
    salted: bool = True
    """Whether the tier's keys depend on a request's cache salt."""
    chunk_tokens: int | None = None
    """Tokens of one chunk of the tier where the connector's configuration does not tell them; ``None`` otherwise."""
    helper_logs: Mapping[str, str] = field(default_factory=dict)
    """Name to log file of each process that was started beside the server."""
    command: tuple[str, ...] = ()
    """Command line, secrets masked; empty for ``attach``."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The environment variables that were set for it, secrets masked."""
    log_path: str | None = None
    pid: int | None = None
    boot_seconds: float | None = None
    engine_urls: tuple[str, ...] = ()
    """The engines behind ``url`` where that is a router: what is reset is reset on each of them."""
    replicas: int = 1
    """Engines that answer: data parallel ranks, times the servers behind a router."""
    kv_event_sources: tuple[KVEventSource, ...] = ()

    @property
    def device_cache_tokens(self) -> int | None:
        """Prefix cache of the devices of all replicas in tokens, ``None`` when the server does not tell."""
        if self.device_cache_blocks is None or self.block_size_tokens is None:
            return None
        return self.block_size_tokens * self.device_cache_blocks

    @property
    def device_cache_blocks(self) -> int | None:
        """The same in blocks; ``num_gpu_blocks`` is what one replica has."""
        return None if self.num_gpu_blocks is None else self.num_gpu_blocks * self.replicas


# ------------------------------------------------------------------------------------------------ metrics
@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line of an exposition: the sample's own name (``..._total``, ``..._bucket``), labels and value."""

    name: str
    labels: Mapping[str, str]
    value: float
    kind: SampleKind = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One scrape of one or several endpoints.

    ``taken_at_seconds`` is monotonic. Samples of several endpoints carry the label ``endpoint``; so do those of
    one endpoint (its URL), which keeps the joins uniform.
    """

    taken_at_seconds: float
    wall_time: str
    urls: tuple[str, ...]
    samples: tuple[Sample, ...]
    families: Mapping[str, SampleKind]
    """Declared families by exposed family name, samples or none: "declared but silent" differs from "absent"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSample:
    """What one series did between two scrapes. ``before`` is ``None`` when the series appeared in between."""

    name: str
    labels: Mapping[str, str]
    kind: SampleKind
    before: float | None
    after: float
    increment: float
    """``after - before`` for gauges; the increase with resets repaired for counters and histogram series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Two scrapes compared."""

    seconds: float
    samples: tuple[DeltaSample, ...]
    families: Mapping[str, SampleKind]
    resets: tuple[str, ...] = ()
    """Series whose counter went down in between."""
    restarts: tuple[str, ...] = ()
    """Endpoints whose process was replaced in between."""
    vanished: tuple[str, ...] = ()
    """Series that were in the first scrape only."""


# ----------------------------------------------------------------------------------------------- workload
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """One request to send. ``prompt_token_ids`` are the whole prompt; arrival is relative to the phase start."""

    index: int
    session: int
    turn: int
    prompt_token_ids: tuple[int, ...]
    prefix_tokens: int
    output_tokens: int
    arrival_seconds: float | None = None
    cache_salt: str | None = None
    prompt_text: str | None = None
    """Sent instead of token ids to a server without ``/tokenize``; lengths are then estimates."""
    estimated_tokens: int | None = None
    """Length of ``prompt_text``, estimated from the server's own usage report."""
    follows: int | None = None
    """Index of the request whose prompt and generated tokens come before this prompt (multi-turn chat)."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt as planned (what ``follows`` adds is not in it)."""
        return len(self.prompt_token_ids) if self.estimated_tokens is None else self.estimated_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSample:
    """What one request did, seen from the client. Times are monotonic seconds since the phase began."""

    index: int
    session: int
    turn: int
    phase: PhaseName
    prompt_tokens: int
    prefix_tokens: int
    sent_at_seconds: float
    first_token_at_seconds: float | None
    last_token_at_seconds: float | None
    output_token_ids: tuple[int, ...] = ()
    cached_tokens: int | None = None
    """As the server reports it (device and tiers together); ``None`` when it does not."""
    status: int | None = None
    error: str | None = None
    output_text: str | None = None

    @property
    def ok(self) -> bool:
        """Whether a first token came and nothing went wrong."""
        return self.error is None and self.first_token_at_seconds is not None

    @property
    def ttft_seconds(self) -> float | None:
        """Time to first token, ``None`` for a failed request."""
        if self.first_token_at_seconds is None:
            return None
        return self.first_token_at_seconds - self.sent_at_seconds

    @property
    def e2e_seconds(self) -> float | None:
        """Time to last token, ``None`` for a failed request."""
        if self.last_token_at_seconds is None:
            return None
        return self.last_token_at_seconds - self.sent_at_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """The arithmetic that proves (or not) that a revisit must come from a tier. Tokens."""

    mode: str
    seed: int
    sessions: int
    turns: int
    working_set_tokens: int
    device_cache_tokens: int | None
    block_size_tokens: int | None
    evicts: bool
    """Whether the working set exceeds the device cache, so that nothing can be resident from the cold pass."""
    explanation: str
    tier_tokens: int | None = None
    """Capacity of the host tier where it could be learnt (mode ``thrash``)."""


# -------------------------------------------------------------------------------------------- measurement
@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventCount:
    """KV cache events of one replica, kind and medium. A block of a tier is one of its chunks."""

    replica: str
    kind: Literal["stored", "removed", "cleared"]
    medium: str
    """As vLLM writes it: ``GPU``, ``CPU``, ``STORAGE``; empty where it names none."""
    events: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventLog:
    """The KV cache events of one phase."""

    counts: tuple[KVEventCount, ...] = ()
    batches: int = 0
    lost_batches: int = 0
    """Batches that were published and never came, not even on request: the counts are then lower bounds."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseResult:
    """One phase of a measurement: its requests, and what the meters did meanwhile."""

    name: PhaseName
    samples: tuple[RequestSample, ...]
    delta: Delta
    duration_seconds: float
    notes: tuple[str, ...] = ()
    kv_events: KVEventLog | None = None
    """``None`` when nothing listened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """All evidence about one arm: what ran, what was asked of it, what it did."""

    arm: str
    connector: ConnectorConfig
    server: ServerInfo
    workload: WorkloadConfig
    plan: PlanSummary
    phases: tuple[PhaseResult, ...]
    started_at: str
    environment: Mapping[str, str] = field(default_factory=dict)
    """Plugin, Python, platform, CPU and GPU: what makes two runs comparable."""
    complete: bool = True
    """``False`` when the run was interrupted; ``notes`` say where."""
    notes: tuple[str, ...] = ()
    artefacts: Mapping[str, str] = field(default_factory=dict)
    """Name to path: server log, measurement JSON, report."""
    schema_version: int = SCHEMA_VERSION

    def phase(self, name: PhaseName) -> PhaseResult:
        """Return the phase of that name; ``KeyError`` names the phases there are."""
        for phase in self.phases:
            if phase.name == name:
                return phase
        known = ", ".join(p.name for p in self.phases) or "none"
        raise KeyError(f"measurement {self.arm!r} has no phase {name!r} (it has: {known})")

    @property
    def phase_names(self) -> tuple[PhaseName, ...]:
        """Names of the phases, in the order they ran."""
        return tuple(phase.name for phase in self.phases)


FaultOutcome: TypeAlias = Literal["served", "degraded", "failed_loudly", "hung", "wrong_output"]
"""What a fault did to the requests: answered with hits; answered by recomputing; failed within bounded time; no end
within the bound; answered with other tokens than before the fault."""


FaultVerdict: TypeAlias = Literal["pass", "fail", "inconclusive", "not-applicable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultResult:
    """What one fault did to one connector, with the evidence.

    ``outcome`` is ``None`` where nothing was observed: the fault does not apply (``verdict`` is ``not-applicable``)
    or the run could not show anything (``inconclusive``); ``reason`` says why.
    """

    fault: str
    connector: str
    kind: str
    outcome: FaultOutcome | None
    verdict: FaultVerdict
    expected: tuple[FaultOutcome, ...]
    reason: str
    """One sentence: what was seen, with its cause where a log names it; or why nothing could be."""
    vllm_version: str | None = None
    failed_requests: int | None = None
    requests: int | None = None
    """Requests of the phase with the fault."""
    hit_rate_before: float | None = None
    """Restored hit rate of the tier before the fault; ``None`` where the fault is there from the boot on."""
    hit_rate: float | None = None
    """The same prompts' hit rate while the fault was on."""
    ttft_max_seconds: float | None = None
    """Slowest answered request while the fault was on."""
    ttft_before_seconds: float | None = None
    """Slowest answered request before the fault."""
    recovered: bool | None = None
    """Whether requests succeed with hits again after the fault; ``None`` where that was not asked."""
    seconds: float | None = None
    """How long the scenario took, its boot not counted."""
    left_behind: tuple[str, ...] = ()
    """What was still there after the clean-up; empty is what must be."""
    notes: tuple[str, ...] = ()
    measurement: Measurement | None = None
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSnapshot:
    """What a server holds of its host at one moment: for soaks, and for what is left after a stop."""

    taken_at_seconds: float
    memory_bytes: int
    """Proportional set size of all its processes (shared pages counted once)."""
    shm_bytes: int
    """Size of the files in ``shm_files``."""
    shm_files: tuple[str, ...] = ()
    """vLLM's files in /dev/shm."""
    processes: tuple[str, ...] = ()
    """Its live processes: pid, start time and name."""


def to_json(record: object, *, indent: int = 0) -> bytes:
    """Encode any record of this module; NaN and infinities become ``null``."""
    import msgspec

    raw = msgspec.json.encode(record)
    return msgspec.json.format(raw, indent=indent) if indent else raw


def measurement_from_json(raw: bytes | str) -> Measurement:
    """Decode a measurement.

    Raises:
        ValueError: not JSON, not a measurement, or written by a newer schema; the message says which.
    """
    import msgspec

    try:
        head = msgspec.json.decode(raw)
        if not isinstance(head, dict) or "schema_version" not in head:
            raise ValueError("not a kvoffload measurement: no schema_version")
        if head["schema_version"] != SCHEMA_VERSION:
            raise ValueError(
                f"measurement schema {head['schema_version']!r} is not the {SCHEMA_VERSION} that this version reads"
            )
        return msgspec.convert(head, Measurement)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a kvoffload measurement: {error}") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
