"""A against A on a real engine: the gate compares a configuration with itself, again and again, with other seeds.

Each run boots both arms (managed vLLM, CPU backend) and sends requests that no other run sends. Right answers are
*pass* and *inconclusive*; a *fail* is an innocent change that was blocked. Nothing is judged by an absolute time: the
table shows ratios of two arms of one run. What is done already is read from the folder and not repeated.

    python benchmarks/gate_against_itself.py --runs 10 --folder against-itself
    python benchmarks/gate_against_itself.py --runs 10 --folder against-itself --table
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

CONFIG = """
[engine]
kind = "cpu"
vllm_version = "{vllm}"
num_gpu_blocks = 40
max_model_len = 4096

[connectors.native]
kind = "native"
size_gib = 1
link_bandwidth_bytes_per_second = {bandwidth}

[workload]
prefix_tokens = 256
output_tokens = 2
repeats = {repeats}
seed = {seed}

[gate]
requests = {requests}
boots = {boots}
thresholds = ["ttft_p99 regression < 10%", "external.hit_rate >= 0.6"]
"""
SEEDS_APART = 1000
"""Between two runs: each block of a run adds one to the seed."""


def main() -> int:
    """Run, and print the table; 1 if any run was a fail, or has no verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("gate-against-itself"))
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--vllm", default="0.32.0")
    parser.add_argument("--requests", type=int, default=310)
    parser.add_argument("--boots", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--bandwidth", type=int, default=6_000_000, help="bytes per second of the modelled link")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run in progress ends too
    folders = [args.folder / f"seed-{args.first_seed + SEEDS_APART * number}" for number in range(args.runs)]
    for folder in folders:
        if not args.table and not (folder / "out" / "verdict.json").exists():
            _one_run(folder, args)
    verdicts = {f.name: json.loads(p.read_text()) for f in folders if (p := f / "out" / "verdict.json").exists()}
    print(table(verdicts))
    for folder in folders:
        if folder.name not in verdicts and not args.table:
            print(f"no verdict: see {folder / 'output.txt'}")
    complete = args.table or len(verdicts) == len(folders)
    return 0 if complete and all(verdict["outcome"] != "fail" for verdict in verdicts.values()) else 1


def table(verdicts: dict[str, dict[str, Any]]) -> str:
    """Return the outcomes as a Markdown table, and how many there were of each."""
    lines = [
        "| run | verdict | requests per arm | boots per arm | p99 ratio and its interval | hit rate |",
        "|---|---|---:|---:|---:|---:|",
    ]
    outcomes: dict[str, int] = {}
    for name, document in verdicts.items():
        verdict = document["verdict"]
        outcomes[document["outcome"]] = outcomes.get(document["outcome"], 0) + 1
        cells = [_tail(verdict, "ttft_p99"), _value(verdict, "external.hit_rate")]
        counts = [str(verdict["requests_per_arm"]), str(verdict["boots_per_arm"])]
        lines.append(f"| {' | '.join([name, document['outcome'], *counts, *cells])} |")
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())) or "nothing yet"
    runs = f"{len(verdicts)} run{'s' if len(verdicts) != 1 else ''}"
    return "\n".join([*lines, "", f"{runs}: {told}."])


def _one_run(folder: Path, args: argparse.Namespace) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    seed = int(folder.name.removeprefix("seed-"))
    text = CONFIG.format(
        vllm=args.vllm,
        bandwidth=args.bandwidth,
        repeats=args.repeats,
        seed=seed,
        requests=args.requests,
        boots=args.boots,
    )
    for name in ("candidate.toml", "reference.toml"):
        (folder / name).write_text(text, encoding="utf-8")
    words = ["gate", "--config", "candidate.toml", "--candidate", "native", "--reference", "reference.toml"]
    with (folder / "output.txt").open("w", encoding="utf-8") as sink:
        subprocess.run(
            [sys.executable, "-m", "pytest_kvoffload", *words, "--output", "out"],
            cwd=folder,
            stdout=sink,
            stderr=subprocess.STDOUT,
            check=False,
        )


def _finding(verdict: dict[str, Any], start: str) -> dict[str, Any]:
    return next((finding for finding in verdict["findings"] if finding["name"].startswith(start)), {})


def _tail(verdict: dict[str, Any], start: str) -> str:
    found = _finding(verdict, start)
    if not (tail := found.get("tail")):
        return ""
    return f"{tail['ratio']:.3f} [{tail['ratio_low']:.3f}, {tail['ratio_high']:.3f}]"


def _value(verdict: dict[str, Any], start: str) -> str:
    value = _finding(verdict, start).get("value")
    return "" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
