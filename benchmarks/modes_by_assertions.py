"""Every workload mode and every assertion on the real engine, as one table.

Each mode must end in the verdict that it was made for, and each assertion must be seen to hold and to fail on real
data. Boots several servers, one after another; takes some minutes.

    python benchmarks/modes_by_assertions.py                      # the managed cpu engine
    python benchmarks/modes_by_assertions.py --python /opt/vllm/bin/python
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_kvoffload import assertions as a
from pytest_kvoffload.engine import RunningServer, boot
from pytest_kvoffload.probe import measure, snapshot_resources
from pytest_kvoffload.records import (
    ConnectorConfig,
    EngineConfig,
    Measurement,
    ModelConfig,
    ResourceSnapshot,
    WorkloadConfig,
)

BASE = WorkloadConfig(prefix_tokens=1024, suffix_tokens=16, output_tokens=8)
BLOCKS = 48
MIB = 2**20

Verdict = tuple[str, str, str, str]
"""Mode, arm, assertion, outcome that the mode was made for."""

EXPECTED: tuple[Verdict, ...] = (
    ("restore", "native", "offload_helps", "holds"),
    ("restore", "native", "same_output", "holds"),
    ("restore", "control", "offload_helps", "tier-not-exercised"),
    ("restore", "slow_link", "offload_helps", "violated"),
    ("restore", "too_small", "tier_exercised", "tier-not-exercised"),
    ("restore", "too_small", "no_allocation_failures", "violated"),
    ("resident", "native", "device_hits", "holds"),
    ("resident", "native", "tier_exercised", "phase-missing"),
    ("thrash", "small_tier", "offload_helps", "tier-not-exercised"),
    ("thrash", "small_tier", "stores_without_loads", "violated"),
    ("burst", "native", "burst_hits", "holds"),
    ("no_reuse", "native", "offload_helps", "tier-not-exercised"),
    ("no_reuse", "native", "hit_rate", "violated"),
    ("chat", "native", "hit_rate", "holds"),
    ("chat", "native", "chat_parity", "holds"),
    ("replay_log", "native", "hit_rate", "holds"),
    ("replay_log", "native", "same_output", "holds"),
    ("restart", "native", "hit_rate", "violated"),
    ("restart", "disk", "hit_rate", "holds"),
)


@dataclass
class Evidence:
    """What was seen of each assertion."""

    cells: dict[tuple[str, str, str], str] = field(default_factory=dict)
    texts: dict[tuple[str, str, str], str] = field(default_factory=dict)
    seen: dict[str, set[str]] = field(default_factory=dict)

    def judge(self, mode: str, arm: str, name: str, call: Callable[[], None], *, public: str | None = None) -> None:
        """Run one assertion and write down how it ended."""
        try:
            call()
            outcome = "holds"
        except a.MeterAssertionError as error:
            outcome = error.outcome
            self.texts[mode, arm, name] = str(error)
        self.cells[mode, arm, name] = outcome
        if public is not None:
            self.seen.setdefault(public, set()).add(outcome)


def judge_all(evidence: Evidence, made: Measurement, control: Measurement | None) -> None:
    """Every assertion that takes a measurement, with an ordinary bound and with one that cannot hold."""
    mode, arm = made.plan.mode, made.arm
    reference = control or made
    calls: list[tuple[str, str, Callable[[], None]]] = [
        ("hit_rate", "assert_hit_rate_above", lambda: a.assert_hit_rate_above(made, 0.6)),
        ("tier_exercised", "assert_tier_exercised", lambda: a.assert_tier_exercised(made)),
        ("stores_without_loads", "assert_no_stores_without_loads", lambda: a.assert_no_stores_without_loads(made)),
        ("no_allocation_failures", "assert_no_allocation_failures", lambda: a.assert_no_allocation_failures(made)),
        ("preemptions<1", "assert_preemptions_below", lambda: a.assert_preemptions_below(made, 1)),
        ("preemptions<0", "assert_preemptions_below", lambda: a.assert_preemptions_below(made, 0)),
        ("no_failed", "assert_no_failed_requests", lambda: a.assert_no_failed_requests(made)),
        (
            "p50<control",
            "assert_ttft_p50_below",
            lambda: a.assert_ttft_p50_below(made, relative_to=reference, factor=0.9),
        ),
        ("p95<10s", "assert_ttft_p95_bounded", lambda: a.assert_ttft_p95_bounded(made, 10.0)),
        ("p95<1ms", "assert_ttft_p95_bounded", lambda: a.assert_ttft_p95_bounded(made, 0.001)),
        ("p99<10s", "assert_ttft_p99_bounded", lambda: a.assert_ttft_p99_bounded(made, 10.0)),
        ("p99<1ms", "assert_ttft_p99_bounded", lambda: a.assert_ttft_p99_bounded(made, 0.001)),
        ("max<10s", "assert_ttft_max_bounded", lambda: a.assert_ttft_max_bounded(made, 10.0)),
        ("max<1ms", "assert_ttft_max_bounded", lambda: a.assert_ttft_max_bounded(made, 0.001)),
        ("faster_than_cold", "assert_restored_faster_than_cold", lambda: a.assert_restored_faster_than_cold(made, 1.2)),
        ("store_cost<2", "assert_store_cost_bounded", lambda: a.assert_store_cost_bounded(made, reference, 2.0)),
        ("store_cost<.1", "assert_store_cost_bounded", lambda: a.assert_store_cost_bounded(made, reference, 0.1)),
        (
            "client=server",
            "assert_client_and_server_agree_on_ttft",
            lambda: a.assert_client_and_server_agree_on_ttft(made),
        ),
        (
            "client=server,0",
            "assert_client_and_server_agree_on_ttft",
            lambda: a.assert_client_and_server_agree_on_ttft(made, tolerance_seconds=0, tolerance_share=0),
        ),
        ("same_output", "assert_same_output", lambda: a.assert_same_output(made)),
        ("same_as_control", "assert_same_output", lambda: a.assert_same_output(made, relative_to=reference)),
        ("lookup<1s", "assert_lookup_delay_bounded", lambda: a.assert_lookup_delay_bounded(made, 1.0)),
        ("lookup<1ns", "assert_lookup_delay_bounded", lambda: a.assert_lookup_delay_bounded(made, 1e-9)),
        ("bandwidth>1MB", "assert_load_bandwidth_above", lambda: a.assert_load_bandwidth_above(made, 1e6)),
        ("bandwidth>1TB", "assert_load_bandwidth_above", lambda: a.assert_load_bandwidth_above(made, 1e12)),
        ("offload_helps", "assert_offload_helps", lambda: a.assert_offload_helps(made, control)),
    ]
    if mode == "resident":
        calls.append(
            (
                "device_hits",
                "assert_hit_rate_above",
                lambda: a.assert_hit_rate_above(made, 0.9, tier="device", phase="resident"),
            )
        )
    if mode == "burst":
        calls.append(("burst_hits", "assert_hit_rate_above", lambda: a.assert_hit_rate_above(made, 0.9, phase="burst")))
    if mode == "chat":
        calls.append(
            (
                "chat_parity",
                "assert_same_output",
                lambda: a.assert_same_output(made, phase="replayed", against="restored"),
            )
        )
    for name, public, call in calls:
        evidence.judge(mode, arm, name, call, public=public)


class Bench:
    """Boots arms and measures modes on them."""

    def __init__(self, engine: EngineConfig, folder: Path) -> None:
        self.engine, self.folder, self.boots = engine, folder, 0

    @contextmanager
    def server(self, connector: ConnectorConfig) -> Iterator[RunningServer]:
        """Boot an arm."""
        self.boots += 1
        begun = time.monotonic()
        server = boot(
            engine=self.engine,
            model=ModelConfig(),
            connector=connector,
            run_dir=self.folder / f"{self.boots}-{connector.name}",
        )
        say(f"{connector.name}: ready after {time.monotonic() - begun:.0f} s")
        try:
            yield server
        finally:
            server.stop()

    def run(self, server: RunningServer, connector: ConnectorConfig, mode: str, **how: object) -> Measurement:
        """Measure one mode."""
        begun = time.monotonic()
        timeout = float(str(how.pop("request_timeout_seconds", 120.0)))
        made = measure(
            server,
            arm=connector.name,
            connector=connector,
            workload=replace(BASE, mode=mode, **how),  # type: ignore[arg-type]
            artefacts_dir=self.folder / mode,
            request_timeout_seconds=timeout,
        )
        say(f"{connector.name}/{mode}: {time.monotonic() - begun:.0f} s, " + ", ".join(made.phase_names))
        return made


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def request_log(folder: Path, words: int = 12) -> str:
    """Write a request log whose prompts are longer than the device cache together."""
    path = folder / "requests.jsonl"
    lines = [
        json.dumps({"prompt_token_ids": [(session * 37 + i * 11) % 90 + 10 for i in range(1100)], "max_tokens": 4})
        for session in range(words)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def main() -> int:
    """Run everything, print the table, and say whether it is as it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", help="interpreter that has vllm; the managed cpu engine without it")
    parser.add_argument("--vllm-version", help="version of the managed engine")
    parser.add_argument("--texts", action="store_true", help="print the text of each failure too")
    args = parser.parse_args()
    engine = EngineConfig(
        kind="local" if args.python else "cpu",
        python=args.python,
        vllm_version=args.vllm_version,
        num_gpu_blocks=BLOCKS,
        max_model_len=4096,
    )
    evidence = Evidence()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        everything(Bench(engine, folder), evidence, folder)
    return report(evidence, texts=args.texts)


def everything(bench: Bench, evidence: Evidence, folder: Path) -> None:
    """All arms and modes."""
    control = ConnectorConfig(name="control", kind="recompute")
    native = ConnectorConfig(name="native", kind="native", options={"size_gib": 0.5})
    log = request_log(folder)
    many = {"repeats": 9}  # 108 restored requests carry a p99
    with bench.server(control) as server:
        base = bench.run(server, control, "restore", **many)
        other_seed = bench.run(server, control, "restore", seed=1)
        burst = bench.run(server, control, "burst")
        chat = bench.run(server, control, "chat", turns=3, output_tokens=32)
    judge_all(evidence, base, None)
    native_arm(bench, evidence, native, (base, other_seed, burst, chat), log)
    for name, options, mode in (
        ("slow_link", {"size_gib": 0.5, "link_latency_seconds": 0.4}, "restore"),
        ("too_small", {"cpu_bytes_to_use": 8}, "restore"),
        ("small_tier", {"cpu_bytes_to_use": 24 * MIB}, "thrash"),
    ):
        connector = ConnectorConfig(name=name, kind="native", options=options)
        with bench.server(connector) as server:
            judge_all(evidence, bench.run(server, connector, mode), base if mode == "restore" else None)
    disk = ConnectorConfig(
        name="disk",
        kind="tiering",
        options={
            "cpu_bytes_to_use": 16 * MIB,
            "secondary_tiers": [{"type": "fs", "root_dir": str(folder / "disk")}],
        },
        # Before vLLM 0.29 block hashes differ from process to process unless this is set.
        env={"PYTHONHASHSEED": "0"},
    )
    for connector in (native, disk):
        judge_all(evidence, restarted(bench, connector), None)


def native_arm(
    bench: Bench, evidence: Evidence, native: ConnectorConfig, controls: tuple[Measurement, ...], log: str
) -> None:
    """Everything that one server with a host tier can show."""
    base, other_seed, burst, chat = controls
    nobody = replace(base.server, pid=None)
    before = snapshot_resources(nobody)
    soak: list[ResourceSnapshot] = []
    with bench.server(native) as server:
        made = bench.run(server, native, "restore", repeats=9)
        judge_all(evidence, made, base)
        evidence.judge(
            "restore",
            "native",
            "other_seed",
            lambda: a.assert_same_output(made, relative_to=other_seed),
            public="assert_same_output",
        )
        judge_all(evidence, bench.run(server, native, "burst"), burst)
        judge_all(evidence, bench.run(server, native, "chat", turns=3, output_tokens=32), chat)
        for mode, how in (("resident", {}), ("no_reuse", {}), ("replay_log", {"request_log": log})):
            judge_all(evidence, bench.run(server, native, mode, **how), None)
        hasty = bench.run(server, native, "restore", request_timeout_seconds=0.02)
        evidence.judge(
            "restore",
            "native, 20 ms",
            "no_failed",
            lambda: a.assert_no_failed_requests(hasty),
            public="assert_no_failed_requests",
        )
        for _ in range(6):
            bench.run(server, native, "resident")
            soak.append(snapshot_resources(server.info))
        running = soak[-1]
    after = snapshot_resources(server.info, since=running)
    for name, call in (
        ("growth, soak", lambda: a.assert_no_growth(soak)),
        ("growth, boot", lambda: a.assert_no_growth([before] * 3 + soak[:3])),
    ):
        evidence.judge("soak", "native", name, call, public="assert_no_growth")
    for name, last in (("left, stopped", after), ("left, running", running)):
        evidence.judge(
            "soak",
            "native",
            name,
            lambda last=last: a.assert_nothing_left_behind(before, last),  # type: ignore[misc]
            public="assert_nothing_left_behind",
        )


def restarted(bench: Bench, connector: ConnectorConfig) -> Measurement:
    """Measure mode ``restart``: two boots."""
    second: list[RunningServer] = []

    def start(first: RunningServer) -> RunningServer:
        first.stop()
        bench.boots += 1
        run_dir = bench.folder / f"{bench.boots}-{connector.name}"
        second.append(boot(engine=bench.engine, model=ModelConfig(), connector=connector, run_dir=run_dir))
        return second[0]

    with bench.server(connector) as server:
        try:
            made = measure(
                server,
                arm=connector.name,
                connector=connector,
                workload=replace(BASE, mode="restart"),
                restart=lambda: start(server),
            )
        finally:
            for one in second:
                one.stop()
    say(f"{connector.name}/restart: done")
    return made


SHORT = {
    "holds": "ok",
    "violated": "FAILS",
    "tier-not-exercised": "no tier",
    "metric-absent": "absent",
    "too-few-samples": "few",
    "phase-missing": "no phase",
    "failed-requests": "failed",
    "incomplete": "partial",
}


def report(evidence: Evidence, *, texts: bool) -> int:
    """Print the tables; return 1 when a verdict is not what the mode was made for."""
    runs = list(dict.fromkeys((mode, arm) for mode, arm, _ in evidence.cells))
    names = list(dict.fromkeys(name for _, _, name in evidence.cells))
    heads = [f"{mode}/{arm}" for mode, arm in runs]
    print("\nmodes x assertions: " + ", ".join(f"{short} = {outcome}" for outcome, short in SHORT.items()))
    for start in range(0, len(runs), 6):
        some = runs[start : start + 6]
        print(f"{'':<24}" + "".join(f"{head:>22}" for head in heads[start : start + 6]))
        for name in names:
            row = [SHORT.get(evidence.cells.get((mode, arm, name), ""), "") for mode, arm in some]
            if any(row):
                print(f"{name:<24}" + "".join(f"{cell:>22}" for cell in row))
        print()
    if texts:
        for (mode, arm, name), text in evidence.texts.items():
            print(f"--- {mode}/{arm} {name}\n{text}\n")
    wrong = 0
    print("verdict of each mode")
    for mode, arm, name, expected in EXPECTED:
        got = evidence.cells.get((mode, arm, name), "not run")
        wrong += got != expected
        print(f"  {'as made for' if got == expected else 'WRONG':<12} {mode:<11} {arm:<11} {name:<23} {got}")
    print("each assertion on real data")
    for public in (name for name in a.__all__ if name.startswith("assert_")):
        seen = evidence.seen.get(public, set())
        failing = sorted(seen - {"holds"})
        both = "holds" in seen and bool({"violated", "tier-not-exercised"} & seen)
        wrong += not both
        print(
            f"  {'both seen' if both else 'NOT BOTH':<12} {public:<40} {'holds, ' if 'holds' in seen else ''}{failing}"
        )
    print(f"{wrong} not as they should be" if wrong else "all as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
