"""How long ``kvoffload lint`` takes on a large tree, beside ``grep -rlE`` for the same words on the same tree.

Prints both times and their ratio, which must stay at or below 4, and the time of ``kvoffload lint --help``::

    python benchmarks/lint_speed.py [--files 20000] [--matter 50] [--rounds 5]
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pytest_kvoffload.lint.sources.formats import TRIGGERS

LIMIT = 4.0
ENDINGS = (".py", ".sh", ".yaml", ".yml", ".toml", ".txt", ".json", ".conf")
WORDS = ("alpha", "import", "return", "class", "value", "config", "server", "client", "request", "response", "index")
SCRIPT = """#!/bin/bash
export PYTHONHASHSEED=0
export LMCACHE_MAX_LOCAL_CPU_SIZE={size}
vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-model-len 32768 \\
  --kv-transfer-config '{{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}}'
"""


def make_tree(root: Path, files: int, matter: int) -> None:
    """Write ``files`` files of 0.5 to 8 KB in folders of 50, ``matter`` of them launch scripts."""
    rng = random.Random(7)
    chosen = set(rng.sample(range(files), matter))
    for number in range(files):
        folder = root / f"part{number // 2000:02}" / f"folder{number // 50:04}"
        folder.mkdir(parents=True, exist_ok=True)
        if number in chosen:
            (folder / f"serve{number}.sh").write_text(SCRIPT.format(size=number % 60 + 1))
            continue
        lines = [" ".join(rng.choices(WORDS, k=10)) for _ in range(rng.randint(8, 120))]
        (folder / f"file{number}{ENDINGS[number % len(ENDINGS)]}").write_text("\n".join(lines) + "\n")


def timed(command: list[str], cwd: Path | None = None) -> float:
    """Return the seconds that a command takes."""
    start = time.perf_counter()
    subprocess.run(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start


def main() -> int:
    """Measure and print; the exit code says whether the limit holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--matter", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    pattern = "|".join(trigger.decode() for trigger in TRIGGERS)
    lint = [sys.executable, "-m", "pytest_kvoffload", "lint", "."]
    grep = ["grep", "-rlE", pattern, "."]
    root = Path(tempfile.mkdtemp(prefix="kvoffload-lint-speed-"))
    try:
        make_tree(root, args.files, args.matter)
        timed(grep, root), timed(lint, root)  # both find a warm page cache
        greps, lints = [], []
        for _ in range(args.rounds):
            greps.append(timed(grep, root))
            lints.append(timed(lint, root))
    finally:
        shutil.rmtree(root)
    helps = [timed([sys.executable, "-m", "pytest_kvoffload", "lint", "--help"]) for _ in range(args.rounds)]
    grep_s, lint_s = statistics.median(greps), statistics.median(lints)
    print(f"{args.files} files, {args.matter} of them launches, median of {args.rounds}")
    print(f"grep -rlE              {grep_s:7.3f} s")
    print(f"kvoffload lint         {lint_s:7.3f} s   {lint_s / grep_s:.2f} times grep (limit {LIMIT:g})")
    print(f"kvoffload lint --help  {statistics.median(helps):7.3f} s")
    return 0 if lint_s <= LIMIT * grep_s else 1


if __name__ == "__main__":
    sys.exit(main())
