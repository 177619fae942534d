"""Every offload path that runs without a GPU, on every engine version asked for, as one table.

Each row boots a real vLLM with one connector, drives the ``restore`` workload, and is held against a control of the
same version in the same run. Rows take about a minute each; what is done already is read from ``--results`` and not
repeated, so that the table can be made in several sittings. Rows of the page that this one has not run stay in it.

    python benchmarks/tier_matrix.py --list
    python benchmarks/tier_matrix.py --versions 0.32.0 --rows native "tiering fs"
    python benchmarks/tier_matrix.py --versions 0.27.1 0.32.0 --results matrix.json --write docs/tier-matrix.md
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pytest_kvoffload import assertions as a
from pytest_kvoffload.engine import RunningServer, boot
from pytest_kvoffload.engine.guard import mapped_shared_memory
from pytest_kvoffload.engine.processes import free_port
from pytest_kvoffload.errors import KVOffloadError
from pytest_kvoffload.metrics.hit_rate import HitRate, hit_rate
from pytest_kvoffload.metrics.meters import read_meters
from pytest_kvoffload.probe import measure
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, Measurement, ModelConfig, WorkloadConfig, to_json
from pytest_kvoffload.stats import quantile

VERSIONS = ("0.27.1", "0.32.0")
BLOCKS = 48
WORKLOAD = WorkloadConfig(prefix_tokens=2048, suffix_tokens=16, output_tokens=8)
COLUMNS = ("boots", "exercised", "hit rate", "TTFT / control", "same output", "clean stop", "nothing left")
HOST_GIB = 0.25
BUCKET = "kvoffload"
S3_KEY = "matrix"
MARKER = "KVOFFLOAD_MATRIX_RUN"
"""In the environment of everything that this run starts."""


@dataclass(frozen=True)
class Place:
    """What a row may use: a directory of its own, and the object store (started when first asked for)."""

    folder: Path
    s3: Callable[[], str]


@dataclass(frozen=True)
class Row:
    """One connector of the table."""

    name: str
    kind: str
    options: Callable[[Place], Mapping[str, Any]] = lambda place: {}
    args: tuple[str, ...] = ()


def _fs(place: Place) -> dict[str, Any]:
    return {"type": "fs", "root_dir": str(place.folder / "tier")}


def _obj(place: Place) -> dict[str, Any]:
    store = {
        "bucket": BUCKET,
        "endpoint_override": place.s3(),
        "scheme": "http",
        "access_key": S3_KEY,
        "secret_key": S3_KEY,
        "region": "us-east-1",
    }
    return {"type": "obj", "store_config": store, "prefix": place.folder.name}


ROWS: tuple[Row, ...] = (
    Row("recompute", "recompute"),
    Row("native", "native", lambda p: {"size_gib": HOST_GIB}),
    Row("native by flag", "native", lambda p: {"size_gib": HOST_GIB, "via": "flag"}),
    Row("native, 4 blocks a chunk", "native", lambda p: {"size_gib": HOST_GIB, "blocks_per_chunk": 4}),
    Row("native, arc eviction", "native", lambda p: {"size_gib": HOST_GIB, "eviction_policy": "arc"}),
    Row("tiering fs", "tiering", lambda p: {"size_gib": 0.016, "secondary_tiers": [_fs(p)]}),
    Row("tiering obj", "tiering", lambda p: {"size_gib": 0.016, "secondary_tiers": [_obj(p)]}),
    Row("tiering fs + obj", "tiering", lambda p: {"size_gib": 0.016, "secondary_tiers": [_fs(p), _obj(p)]}),
    Row("LMCache MP, L1", "lmcache_mp", lambda p: {"l1_size_gb": 0.2}),
    Row(
        "LMCache MP, L1 + L2 fs",
        "lmcache_mp",
        # Less than the prefixes need, so that L2 is read. LMCache evicts once a second, and what finds no room until
        # then is stored nowhere: early and much, or the row measures the eviction's pace.
        lambda p: {
            "l1_size_gb": 0.04,
            "l2": [{"type": "fs", "base_path": str(p.folder / "l2")}],
            "server_args": ["--eviction-trigger-watermark", "0.3", "--eviction-ratio", "0.7"],
        },
    ),
    Row("LMCache MP, autostart", "lmcache_mp", lambda p: {"l1_size_gb": 0.2, "server": "autostart"}),
    Row("LMCache MP, by flag", "lmcache_mp", lambda p: {"l1_size_gb": 0.2, "via": "flag"}),
    Row("LMCache in-process, DRAM", "lmcache_inprocess", lambda p: {"max_local_cpu_size": 0.25}),
    Row(
        "LMCache in-process, disk",
        "lmcache_inprocess",
        lambda p: {"max_local_cpu_size": 0.02, "local_disk": str(p.folder / "disk"), "max_local_disk_size": 1.0},
    ),
    Row(
        "LMCache in-process, lm://",
        "lmcache_inprocess",
        lambda p: {"remote": "lm", "local_cpu": False, "max_local_cpu_size": 0.25},
    ),
    Row(
        "LMCache in-process, redis",
        "lmcache_inprocess",
        lambda p: {"remote": "redis", "local_cpu": False, "max_local_cpu_size": 0.25},
    ),
    Row("ExampleConnector", "example"),
    Row(
        "MultiConnector: native, LMCache MP",
        "multi",
        lambda p: {"connectors": [{"kind": "native", "size_gib": 0.05}, {"kind": "lmcache_mp", "l1_size_gb": 0.2}]},
    ),
)


def run_row(row: Row, version: str, *, control: Measurement | None, place: Place) -> tuple[dict[str, str], Measurement]:
    """Boot, measure and stop one row.

    Returns:
        The row's cells by column (``HOW`` it failed is the cell ``boots``), and the measurement.
    """
    connector = ConnectorConfig(
        name=row.name.replace(" ", "-"), kind=row.kind, options=dict(row.options(place)), args=row.args
    )
    before = _left_behind()
    server = boot(
        engine=EngineConfig(kind="cpu", vllm_version=version, num_gpu_blocks=BLOCKS, max_model_len=4096),
        model=ModelConfig(),
        connector=connector,
        run_dir=place.folder / "run",
        progress=lambda line: say(f"    {line}"),
    )
    try:
        made = measure(server, arm=row.name, connector=connector, workload=WORKLOAD, artefacts_dir=place.folder)
    finally:
        server.stop()
    return {**_cells(made, control), **_after(server, before)}, made


def _cells(made: Measurement, control: Measurement | None) -> dict[str, str]:
    cells = {"boots": f"{made.server.boot_seconds or 0:.0f} s"}
    if made.server.kv_transfer_config is None:
        return {**cells, "exercised": "no tier", "hit rate": "-", "TTFT / control": "1", "same output": "-"}
    meters = read_meters(made.phase("restored").delta, vllm_version=made.server.vllm_version)
    rate = hit_rate(meters, "external")
    cells["exercised"] = _holds(lambda: a.assert_tier_exercised(made))
    cells["hit rate"] = f"{rate.rate:.2f}" if isinstance(rate, HitRate) else "absent"
    if control is not None:
        cells["TTFT / control"] = f"{_p50(made) / _p50(control):.2f}"
        cells["same output"] = _holds(lambda: a.assert_same_output(made, relative_to=control))
    return cells


def _p50(made: Measurement) -> float:
    times = [s.ttft_seconds for s in made.phase("restored").samples if s.ttft_seconds is not None]
    return quantile(times, 0.5)


def _holds(call: Callable[[], None]) -> str:
    try:
        call()
    except a.MeterAssertionError as error:
        return f"no ({error.outcome})"
    return "yes"


def _after(server: RunningServer, before: set[str]) -> dict[str, str]:
    assert server.supervision is not None
    code = server.supervision.status().get("exit_code")
    helpers = all(not helper.alive() for helper in server.helpers)
    deadline = time.monotonic() + 5
    while (left := _left_behind() - before) and time.monotonic() < deadline:
        time.sleep(0.2)
    return {
        "clean stop": "yes" if code in (0, -15) and helpers and not server.alive() else f"no (exit code {code})",
        "nothing left": "yes" if not left else "no: " + ", ".join(sorted(left))[:80],
    }


def _left_behind() -> set[str]:
    """Shared memory, scratch directories and processes that a server of this run could leave.

    Another server on this machine has shared memory of its own: what a process that is not ours maps is not counted.
    """
    ours: set[str] = set()
    others: list[int] = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            if f"{MARKER}={os.environ[MARKER]}\0".encode() in (entry / "environ").read_bytes():
                ours.add(f"process {entry.name}")
            else:
                others.append(int(entry.name))
    found = {str(path) for path in Path("/dev/shm").iterdir()} - mapped_shared_memory(others, since=0.0)
    return found | ours | {str(path) for path in Path(tempfile.gettempdir()).glob("kvo-*")}


class Store:
    """moto's S3 server, started when the first row asks for it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.endpoint = ""

    def __call__(self) -> str:
        """Return ``host:port`` of the store."""
        if self.process is None:
            import botocore.session

            port = free_port()
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
            self.process = subprocess.Popen(
                command, env={**os.environ, MARKER: "store"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            self.endpoint = f"127.0.0.1:{port}"
            client = botocore.session.get_session().create_client(
                "s3",
                endpoint_url=f"http://{self.endpoint}",
                aws_access_key_id=S3_KEY,
                aws_secret_access_key=S3_KEY,
                region_name="us-east-1",
            )
            deadline = time.monotonic() + 60
            while True:
                try:
                    client.create_bucket(Bucket=BUCKET)
                    break
                except Exception:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)
        return self.endpoint

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


@contextlib.contextmanager
def store() -> Iterator[Store]:
    """An object store that ends with the block."""
    made = Store()
    try:
        yield made
    finally:
        made.stop()


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def as_markdown(results: Mapping[str, Mapping[str, Mapping[str, str]]]) -> str:
    """Render the table: one section a version, one line a row."""
    lines = [
        "# Which tiers were run",
        "",
        "Made by `python benchmarks/tier_matrix.py`: each row booted a real vLLM on its CPU backend, drove the",
        f"`restore` workload ({WORKLOAD.prefix_tokens}-token prefixes, {BLOCKS} device blocks of 128 tokens) and was",
        "held against the control (`recompute`) of the same version in the same sitting; a page may be made in",
        "several. *TTFT / control* is the median of the restored phase over the control's: one small, busy machine's,",
        "a ratio only, and so are the seconds of a boot. *Nothing left* covers processes, `/dev/shm` and scratch",
        "directories. A row that is absent was not run on that version.",
        "",
        "This is the nightly workflow's work. CI boots a part of it for every change: native, tiering with fs and obj,",
        "LMCache MP with both levels, LMCache in-process, and native and fs on the oldest engine.",
        "",
    ]
    for version in sorted(results):
        lines += [f"## vLLM {version}", "", "| connector | " + " | ".join(COLUMNS) + " |"]
        lines.append("|---" * (len(COLUMNS) + 1) + "|")
        for row in ROWS:
            cells = results[version].get(row.name)
            if cells is not None:
                lines.append(f"| {row.name} | " + " | ".join(cells.get(column, "-") for column in COLUMNS) + " |")
        lines.append("")
    return "\n".join(lines)


def from_markdown(text: str) -> dict[str, dict[str, dict[str, str]]]:
    """Read a table that :func:`as_markdown` made; rows that are no rows any more are left out."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    names = {row.name for row in ROWS}
    version = ""
    for line in text.splitlines():
        if line.startswith("## vLLM "):
            version = line.removeprefix("## vLLM ").strip()
        name, *cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if version and name in names:
            found.setdefault(version, {})[name] = dict(zip(COLUMNS, cells, strict=False))
    return found


def main() -> int:
    """Run the rows asked for; 1 when a row did not do what it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=list(VERSIONS), metavar="V")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="only these rows (the control is always run)")
    parser.add_argument("--results", type=Path, help="JSON file that keeps what was done, and is not repeated")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="write the table there")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs and measurements here")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    args = parser.parse_args()
    if args.list:
        say("\n".join(row.name for row in ROWS))
        return 0
    unknown = sorted(set(args.rows or ()) - {row.name for row in ROWS})
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)} (--list names them)")
    results: dict[str, dict[str, dict[str, str]]] = {}
    if args.results and args.results.exists():
        results = json.loads(args.results.read_text())
    folder = (args.keep or Path(tempfile.mkdtemp(prefix="kvoffload-matrix-"))).absolute()
    os.environ[MARKER] = uuid.uuid4().hex
    # Short, since sockets lie below it, and this run's alone, so that what is found there is ours.
    scratch = tempfile.mkdtemp(prefix="kvm-")
    os.environ["TMPDIR"] = tempfile.tempdir = scratch
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        with store() as s3:
            for version in args.versions:
                _one_version(version, results.setdefault(version, {}), args, folder, s3)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if args.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if args.write:
        page = from_markdown(args.write.read_text()) if args.write.exists() else {}
        args.write.write_text(as_markdown({v: page.get(v, {}) | results.get(v, {}) for v in {*page, *results}}))
    else:
        say(as_markdown(results))
    bad = [(v, name) for v, rows in results.items() for name, cells in rows.items() if not _good(cells)]
    for version, name in bad:
        say(f"not as it should be: {name} on {version}: {results[version][name]}")
    return 1 if bad else 0


def _end(number: int, frame: object) -> NoReturn:
    """Leave through every ``finally``: a server, the object store and the scratch directories go too."""
    raise SystemExit(128 + number)


def _good(cells: Mapping[str, str]) -> bool:
    return all(cells.get(name, "-") in ("yes", "-", "no tier") for name in COLUMNS if name not in _NUMBERS) and (
        cells["boots"].endswith(" s")
    )


_NUMBERS = ("boots", "hit rate", "TTFT / control")


def _one_version(version: str, done: dict[str, dict[str, str]], args: Any, folder: Path, s3: Store) -> None:
    rows = [row for row in ROWS if row.name not in done and (args.rows is None or row.name in args.rows)]
    if not rows:
        return
    control: Measurement | None = None
    for row in (ROWS[0], *(row for row in rows if row is not ROWS[0])):
        say(f"{version}: {row.name}")
        place = Place(folder=folder / f"{version}-{ROWS.index(row)}-{os.getpid()}", s3=s3)
        place.folder.mkdir(parents=True)
        try:
            cells, made = run_row(row, version, control=control, place=place)
        except KVOffloadError as error:
            cells = {"boots": "no: " + str(error).splitlines()[0].replace("|", "/")[:160]}
            say(str(error))
        else:
            control = control or made
            (place.folder / "measurement.json").write_bytes(to_json(made, indent=1))
        done[row.name] = cells
        say(f"    {cells}")
        if args.results:
            everything = json.loads(args.results.read_text()) if args.results.exists() else {}
            everything.setdefault(version, {})[row.name] = cells
            args.results.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    sys.exit(main())
