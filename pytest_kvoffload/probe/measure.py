"""``measure``: one arm, from a cold start to the last scrape."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from pytest_kvoffload.engine.masking import mask_connector, mask_info
from pytest_kvoffload.errors import ScrapeError, ServerDiedError, UsageError, WorkloadError
from pytest_kvoffload.metrics.delta import delta
from pytest_kvoffload.metrics.query import histogram, total
from pytest_kvoffload.metrics.scrape import scrape
from pytest_kvoffload.probe.cache import reset_prefix_cache, settle
from pytest_kvoffload.probe.clear import clear_tier, clear_words, no_cold_phase
from pytest_kvoffload.probe.environment import environment_of
from pytest_kvoffload.probe.events import PhaseEvents
from pytest_kvoffload.probe.interface import (
    Disturbance,
    MeasurementDiedError,
    MeasurementInterrupted,
    Progress,
    ProgressCallback,
    RestartCallback,
    Server,
)
from pytest_kvoffload.probe.tier import learn_tier_tokens, reset_clears_tier
from pytest_kvoffload.records import (
    ConnectorConfig,
    Delta,
    Measurement,
    PhaseResult,
    PlanSummary,
    RequestSample,
    ServerInfo,
    Snapshot,
    WorkloadConfig,
    to_json,
)
from pytest_kvoffload.stats import quantile
from pytest_kvoffload.workload.client import Drive, Target
from pytest_kvoffload.workload.modes import build_plan
from pytest_kvoffload.workload.plan import Plan, PlannedPhase
from pytest_kvoffload.workload.tokens import learn_pool

PROGRESS_SECONDS = 0.5
LATE_SECONDS, LATE_SHARE = 0.02, 0.3
"""From when on late delivery is worth a note: seconds, and share of the client's mean."""
DISTURBED_SETTLE_SECONDS = 20.0
"""How long a server may go on moving after a disturbed phase."""
LMCACHE_LAG = (
    "series named lmcache:* run up to 10 s behind, so what they show here may belong to the phase before; hit rates "
    "and times are vLLM's own and exact"
)
DEATH_GRACE_SECONDS = 3.0
"""After failed requests: how long the operating system may take to tell that the server is gone."""


def measure(
    server: Server,
    *,
    arm: str,
    connector: ConnectorConfig,
    workload: WorkloadConfig,
    progress: ProgressCallback | None = None,
    artefacts_dir: str | os.PathLike[str] | None = None,
    restart: RestartCallback | None = None,
    request_timeout_seconds: float = 120.0,
    disturbance: Disturbance | None = None,
) -> Measurement:
    """Drive a workload against a server and return all evidence.

    Before the cold phase everything is cleared; where a tier cannot be cleared (no developer mode, a disk tier) every
    request carries a cache salt of its own kind instead, so that nothing older can hit. After each phase the call waits
    until the stores have settled; before a revisit it resets the device cache only.

    Args:
        server: a running server.
        arm: name of the arm in reports.
        connector: what the server was configured with.
        workload: what to send.
        progress: called about twice a second, in this thread.
        artefacts_dir: where the measurement is also written as JSON.
        restart: restarts the server and returns the new one; mode ``restart`` needs it.
        request_timeout_seconds: limit for one request.
        disturbance: is told when a phase begins and ends. From the first disturbed phase on, a server that does not
            become quiet, or that refuses a reset, is a note and no error: that is what faults do.

    Raises:
        WorkloadError: the workload proves nothing on this server, a reset was refused, or stores never settled.
        ConfigError: a value of the workload makes no sense.
        ScrapeError: the metrics cannot be read.
        MeasurementDiedError: the server died; carries the partial measurement.
        MeasurementInterrupted: Ctrl-C; carries the partial measurement.
    """
    run = _Run(
        server=server,
        arm=arm,
        connector=connector,
        workload=workload,
        progress=progress,
        artefacts_dir=None if artefacts_dir is None else Path(artefacts_dir),
        restart=restart,
        timeout=request_timeout_seconds,
        disturbance=disturbance,
    )
    try:
        run.everything()
    except KeyboardInterrupt as error:
        raise MeasurementInterrupted(run.partial("interrupted")) from error
    except ServerDiedError as error:
        raise MeasurementDiedError(str(error), run.partial("the server died")) from error
    return run.result()


class _Run:
    """The state of one measurement while it is being taken."""

    def __init__(
        self,
        *,
        server: Server,
        arm: str,
        connector: ConnectorConfig,
        workload: WorkloadConfig,
        progress: ProgressCallback | None,
        artefacts_dir: Path | None,
        restart: RestartCallback | None,
        timeout: float,
        disturbance: Disturbance | None,
    ) -> None:
        self.server, self.arm, self.connector, self.workload = server, arm, connector, workload
        self.progress, self.artefacts_dir, self.restart, self.timeout = progress, artefacts_dir, restart, timeout
        self.disturbance, self.disturbed = disturbance, False
        self.started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.salt = f"kvoffload-{uuid.uuid4().hex}"
        self.headers = _authorization()
        self.notes: list[str] = []
        self.phases: list[PhaseResult] = []
        self.plan: Plan | None = None
        self.late_notes: list[str] = []
        self.events = PhaseEvents()
        self.transcripts: dict[int, tuple[int, ...]] = {}
        self.progressed_at = self.phase_began = 0.0
        self.progress_told: tuple[str, int] = ("", 0)

    # ------------------------------------------------------------------------------------------ the course
    def everything(self) -> None:
        self.server.check()
        plan = self._make_plan()
        self.plan = plan
        self.notes += plan.notes
        try:
            for phase in plan.phases:
                self._one_phase(phase)
        finally:
            self.events.close()

    def _make_plan(self) -> Plan:
        info = self.server.info
        if self.workload.mode == "restart" and self.restart is None:
            raise UsageError("mode 'restart' needs a way to restart the server: pass restart= to measure()")
        pool = learn_pool(info.url, model=info.model, seed=self.workload.seed, headers=self.headers)
        if pool.text_only:
            self.notes.append("the server has no /tokenize: prompts are text, and their lengths are estimates")
        tier_tokens = None
        if self.workload.mode == "thrash" and self.connector.kind != "recompute":
            tier_tokens = learn_tier_tokens(
                info,
                self.connector,
                self.workload,
                pool=pool,
                target=self._target(),
                salt=self.salt,
                check=self.server.check,
            )
        plan = build_plan(self.workload, info, pool, tier_tokens=tier_tokens)
        return self._kept_apart(plan, info)

    def _kept_apart(self, plan: Plan, info: ServerInfo) -> Plan:
        """Make sure that nothing older can be a hit in a cold phase: by a reset, a clear or a salt."""
        if self.workload.cache_salt is not None:
            # The cold phase is looked at afterwards: one that hits is refused.
            self.notes.append("every request carries the workload's own cache_salt: older KV under it can be hits")
            plan = plan.with_salt(self.workload.cache_salt)
        cold = any(phase.preparation == "clear" for phase in plan.phases)
        if not cold or (info.resets and reset_clears_tier(info, self.connector)):
            return plan
        if not info.salted:
            if not info.clears or not info.resets:
                raise WorkloadError(no_cold_phase(info))
            self.notes.append("this tier is not emptied by vLLM's reset: it is cleared by " + clear_words(info.clears))
            # Beside a tier that ignores salts there may be others that do not (MultiConnector).
            return plan if self.workload.cache_salt is not None else plan.with_salt(self.salt)
        if self.workload.cache_salt is not None:
            return plan
        why = (
            "the server has no developer mode, so no cache can be reset"
            if not info.resets
            else "this tier is not emptied by a reset"
        )
        self.notes.append(f"{why}: every request carries a fresh cache salt, so that nothing older can be a hit")
        if not info.resets:
            self.notes.append(
                "the device cache was not reset between phases; a revisit leaves it only because of the working set: "
                + plan.summary.explanation
            )
        return plan.with_salt(self.salt)

    def _one_phase(self, phase: PlannedPhase) -> None:
        notes = self._prepare_disturbed(phase) if self.disturbed else self._prepare(phase)
        self.events.begin(self.server.info)
        before = scrape(self.server.info.metrics_urls)
        drive = Drive(phase, self._target(), history=self.transcripts)
        begun = self.phase_began = time.monotonic()
        try:
            with self._disturbed(phase.name) as disturbances:
                drive.run(lambda: self._tick(phase, drive))
                seconds = time.monotonic() - begun
                samples = drive.samples()
                self._report(phase, samples, last=True)
                if any(not sample.ok for sample in samples):
                    self._wait_for_death()
            notes += tuple(disturbances)
            after = self._settle_disturbed() if self.disturbed else settle(self.server.info, check=self.server.check)
            notes += tuple(self.late_notes)
        except BaseException:
            seconds = time.monotonic() - begun
            samples = drive.samples()
            notes = (*notes, f"stopped after {len(samples)} of {len(phase.requests)} requests")
            self._keep(phase, samples, self._delta_or_nothing(before), seconds, notes)
            raise
        self.transcripts.update(drive.transcripts())
        meters = delta(before, after)
        self._keep(phase, samples, meters, seconds, notes)
        if phase.preparation == "clear" and self.workload.mode != "replay_log":
            _refuse_warm(phase.name, samples, meters)

    @contextmanager
    def _disturbed(self, phase: str) -> Iterator[list[str]]:
        """Let the disturbance begin and, whatever happens, end."""
        notes: list[str] = []
        if self.disturbance is None:
            yield notes
            return
        begun = self.disturbance.begin(phase)
        self.disturbed = self.disturbed or bool(begun)
        notes += begun
        try:
            yield notes
        finally:
            notes += self.disturbance.end(phase)

    def _prepare_disturbed(self, phase: PlannedPhase) -> tuple[str, ...]:
        try:
            return self._prepare(phase)
        except WorkloadError as error:
            return (f"the reset before this phase was not done: {error}",)

    def _settle_disturbed(self) -> Snapshot:
        """Wait until the server is quiet, but not for ever: transfers that a fault has cut may never end."""
        self.late_notes = []
        try:
            return settle(self.server.info, check=self.server.check, timeout_seconds=DISTURBED_SETTLE_SECONDS)
        except WorkloadError as error:
            self.late_notes = [str(error)]
            return scrape(self.server.info.metrics_urls)
        except ScrapeError:
            # A server whose engine was killed closes its port first, and ends some seconds later.
            deadline = time.monotonic() + DISTURBED_SETTLE_SECONDS
            while time.monotonic() < deadline:
                self.server.check()
                time.sleep(0.1)
            raise

    def _prepare(self, phase: PlannedPhase) -> tuple[str, ...]:
        info, check = self.server.info, self.server.check
        if phase.preparation == "restart" and self.restart is not None:
            self.server = self.restart()
            return ("the server was restarted before this phase",)
        if phase.preparation in {"clear", "reset", "own"} and info.resets:
            if not self.phases:
                # Later phases begin where the one before has settled.
                settle(info, check=check)
            refusals = reset_prefix_cache(
                info, external=phase.preparation != "reset", check=check, headers=self.headers
            )
            if phase.preparation == "clear":
                clear_tier(info)
            if refusals:
                return (f"the reset before this phase was refused {refusals} times, then done",)
        return ()

    def _keep(
        self,
        phase: PlannedPhase,
        samples: tuple[RequestSample, ...],
        meters: Delta,
        seconds: float,
        notes: tuple[str, ...],
    ) -> None:
        found = list(notes)
        failed = [sample for sample in samples if not sample.ok]
        if failed:
            found.append(f"{len(failed)} of {len(samples)} requests failed, the first with: {failed[0].error}")
        if meters.resets:
            found.append("counters went down during this phase: " + ", ".join(meters.resets[:3]))
        if meters.restarts:
            found.append("a server process was replaced during this phase: " + ", ".join(meters.restarts))
        late = _late_delivery(samples, meters)
        if late is not None:
            found.append(late)
        if any(name.startswith("lmcache:") for name in meters.families):
            found.append(LMCACHE_LAG)
        events = self.events.end()
        if events is not None and events.lost_batches:
            found.append(f"{events.lost_batches} batches of KV cache events were lost: their counts are lower bounds")
        found += events.notes if events is not None else ()
        self.phases.append(
            PhaseResult(
                name=phase.name,
                samples=samples,
                delta=meters,
                duration_seconds=seconds,
                notes=tuple(found),
                kv_events=events,
            )
        )

    # ----------------------------------------------------------------------------------------- while it runs
    def _tick(self, phase: PlannedPhase, drive: Drive) -> None:
        self.server.check()
        self.events.drain()
        now = time.monotonic()
        if self.progress is None or now - self.progressed_at < PROGRESS_SECONDS:
            return
        self.progressed_at = now
        self._report(phase, drive.samples())

    def _report(self, phase: PlannedPhase, samples: tuple[RequestSample, ...], *, last: bool = False) -> None:
        told = (phase.name, len(samples))
        if self.progress is None or (not samples and not last) or told == self.progress_told:
            return
        self.progress_told = told
        times = [sample.ttft_seconds for sample in samples if sample.ok and sample.ttft_seconds is not None]
        known = [(sample.cached_tokens, sample.prompt_tokens) for sample in samples if sample.cached_tokens is not None]
        asked = sum(prompt for _, prompt in known)
        self.progress(
            Progress(
                phase=phase.name,
                done=len(samples),
                total=len(phase.requests),
                hit_rate=sum(cached or 0 for cached, _ in known) / asked if asked else None,
                ttft_p50_seconds=quantile(times, 0.5) if times else None,
                requests_per_second=len(samples) / (time.monotonic() - self.phase_began) if samples else None,
                arm=self.arm,
            )
        )

    def _wait_for_death(self) -> None:
        """Requests failed: give a dying server the time to be seen dead, so that its cause is what is reported."""
        deadline = time.monotonic() + DEATH_GRACE_SECONDS
        while time.monotonic() < deadline:
            self.server.check()
            try:
                scrape(self.server.info.metrics_urls, timeout_seconds=1.0)
            except ScrapeError:
                time.sleep(0.1)
                continue
            return
        self.server.check()

    def _delta_or_nothing(self, before: Snapshot) -> Delta:
        try:
            return delta(before, scrape(self.server.info.metrics_urls, timeout_seconds=1.0))
        except (ScrapeError, ValueError):
            return Delta(seconds=0.0, samples=(), families=before.families)

    def _target(self) -> Target:
        return Target(
            url=self.server.info.url,
            model=self.server.info.model,
            seed=self.workload.seed,
            timeout_seconds=self.timeout,
            headers=self.headers,
        )

    # ------------------------------------------------------------------------------------------- the result
    def partial(self, reason: str) -> Measurement:
        """Return what there is, marked incomplete."""
        where = f"during phase {self.phases[-1].name!r}" if self.phases else "before the first phase"
        planned = "" if self.plan is None else f" of {len(self.plan.phases)}"
        self.notes.append(f"incomplete: {reason} {where}; {len(self.phases)}{planned} phases were begun")
        return self._measurement(complete=False)

    def result(self) -> Measurement:
        """Return the whole measurement."""
        return self._measurement(complete=True)

    def _measurement(self, *, complete: bool) -> Measurement:
        info = self.server.info
        artefacts = {} if info.log_path is None else {"server_log": info.log_path}
        if self.artefacts_dir is not None:
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.arm) or "arm"
            artefacts["measurement"] = str(self.artefacts_dir / f"{name}.measurement.json")
        measurement = Measurement(
            arm=self.arm,
            connector=mask_connector(self.connector),
            server=mask_info(info),
            workload=self.workload,
            plan=self._no_plan() if self.plan is None else self.plan.summary,
            phases=tuple(self.phases),
            started_at=self.started_at,
            environment=environment_of(info),
            complete=complete,
            notes=tuple(self.notes),
            artefacts=artefacts,
        )
        if self.artefacts_dir is not None:
            self._write(measurement, Path(artefacts["measurement"]))
        return measurement

    def _write(self, measurement: Measurement, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(to_json(measurement))
        except OSError as error:
            raise WorkloadError(f"cannot write the measurement to {path}: {error}") from error

    def _no_plan(self) -> PlanSummary:
        return PlanSummary(
            mode=self.workload.mode,
            seed=self.workload.seed,
            sessions=0,
            turns=self.workload.turns,
            working_set_tokens=0,
            device_cache_tokens=self.server.info.device_cache_tokens,
            block_size_tokens=self.server.info.block_size_tokens,
            evicts=False,
            explanation="stopped before anything was planned",
        )


def _refuse_warm(name: str, samples: tuple[RequestSample, ...], meters: Delta) -> None:
    """Refuse a cold phase that hit: in none of the generated ones are two prompts alike, so an older run warmed it.

    A log of the user's own repeats what it repeats, and is not judged.

    Raises:
        WorkloadError: says how much came from where.
    """
    external = total(meters, "vllm:external_prefix_cache_hits_total") or 0.0
    # What the server tells of each answer leaves other traffic out; where it does not tell, the counter stands.
    told = [sample.cached_tokens for sample in samples if sample.cached_tokens is not None]
    ours = float(sum(told)) if told and len(told) == len(samples) else external
    if min(external, ours) <= 0:
        return
    asked = sum(sample.prompt_tokens for sample in samples)
    raise WorkloadError(
        f"the cold phase {name!r} was not cold: {min(external, ours):g} of {asked} prompt tokens came from a tier, and "
        f"none of them was ever asked before in this measurement. An earlier run, or another server on the same tier, "
        f"stored them, and what is measured now would be its work. Give the tier a directory, prefix or database of "
        f"its own, or leave workload.cache_salt out"
    )


def _late_delivery(samples: tuple[RequestSample, ...], meters: Delta) -> str | None:
    """Say when first tokens reach the client long after the engine had them: that time is not the tier's.

    vLLM merges what its front end could not deliver yet: on few cores all tokens of a short answer may come as one.
    """
    times = [sample.ttft_seconds for sample in samples if sample.ok and sample.ttft_seconds is not None]
    server = histogram(meters, "vllm:time_to_first_token_seconds")
    if not times or server is None or server.mean is None or server.count != len(times):
        return None
    client = sum(times) / len(times)
    gap = client - server.mean
    if gap < LATE_SECONDS or gap < LATE_SHARE * client:
        return None
    return (
        f"first tokens reached the client {gap:.3f} s after the engine had them (means {client:.3f} s and "
        f"{server.mean:.3f} s): the server's front end is short of CPU, and that is in every TTFT of this phase; fewer "
        "output tokens or more cores lessen it"
    )


def _authorization(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the bearer header for servers started with an API key (``KVOFFLOAD_API_KEY`` or ``VLLM_API_KEY``)."""
    source = os.environ if environ is None else environ
    key = source.get("KVOFFLOAD_API_KEY") or source.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}
