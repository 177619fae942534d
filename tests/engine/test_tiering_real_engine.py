"""Tiers outside the server's process, on real vLLM: isolation that is tried to be broken, and sharing that is meant.

Two servers on one directory, and one on a bucket of moto's S3 server. What needs more boots runs with
``KVOFFLOAD_NIGHTLY=1``: a bucket shared, a changed chunk, the random hash seed of vLLM 0.27.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from pytest_kvoffload.assertions import (
    MeterAssertionError,
    assert_hit_rate_above,
    assert_no_failed_requests,
    assert_same_output,
)
from pytest_kvoffload.engine.processes import free_port
from pytest_kvoffload.errors import WorkloadError
from pytest_kvoffload.metrics.hit_rate import HitRate, hit_rate
from pytest_kvoffload.metrics.meters import read_meters
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, Measurement, ModelConfig, WorkloadConfig, to_json
from pytest_kvoffload.session import Arm, RunSession

pytestmark = pytest.mark.engine

nightly = pytest.mark.skipif(not os.environ.get("KVOFFLOAD_NIGHTLY"), reason="more boots than CI has time for")
HOST_BYTES = 8 * 2**20
"""Holds four prompts of twelve: what is restored comes from below."""
WORKLOAD = WorkloadConfig(prefix_tokens=1024, suffix_tokens=8, output_tokens=4)
ACCESS, SECRET = "AKIAPLANTEDACCESSKEY", "planted-Secret-9f3b"


def arm(name: str, *tiers: dict[str, Any], version: str | None = None, boot: int = 0, **options: Any) -> Arm:
    """A small host tier over these tiers."""
    connector = ConnectorConfig(
        name=name,
        kind="tiering",
        options={"cpu_bytes_to_use": HOST_BYTES, "secondary_tiers": list(tiers), **options},
    )
    engine = EngineConfig(kind="cpu", vllm_version=version, num_gpu_blocks=40, max_model_len=4096)
    return Arm(engine=engine, model=ModelConfig(), connector=connector, boot=boot)


def workload(salt: str | None = None, mode: str = "restore", seed: int = 0) -> WorkloadConfig:
    return WorkloadConfig(
        mode=mode,
        seed=seed,
        prefix_tokens=WORKLOAD.prefix_tokens,
        suffix_tokens=WORKLOAD.suffix_tokens,
        output_tokens=WORKLOAD.output_tokens,
        cache_salt=salt,
    )


def external(measurement: Measurement, phase: str) -> float:
    meters = read_meters(measurement.phase(phase).delta, vllm_version=measurement.server.vllm_version)
    found = hit_rate(meters, "external")
    assert isinstance(found, HitRate)
    return found.rate


@pytest.fixture
def session(tmp_path: Path) -> Iterator[RunSession]:
    """Two servers at a time: what one stored, the other may find."""
    made = RunSession(tmp_path / "run", max_live=2)
    before = {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("vllm_offload_kvo-")}
    yield made
    made.close()
    after = {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("vllm_offload_kvo-")}
    ours = {name for path in (tmp_path / "run").rglob("*.log") for name in shared_files(path)}
    assert not (after - before) & ours, "a server left its shared memory behind"


def shared_files(log: Path) -> set[str]:
    return {f"vllm_offload_{name}.mmap" for name in re.findall(r"kvo-[0-9a-f]{16}", log.read_text(errors="replace"))}


def test_a_directory_is_shared_on_purpose_and_never_by_accident(session: RunSession, tmp_path: Path) -> None:
    tier = {"type": "fs", "root_dir": str(tmp_path / "tier")}
    first, salt = arm("first", tier), f"shared-{uuid.uuid4().hex}"

    one = session.measure(first, workload(salt))
    assert external(one, "cold") == 0
    assert_hit_rate_above(one, 0.9, tier="external")
    assert_same_output(one)

    # The same server, directory and prompts once more: a fresh salt keeps the files from being hits.
    again = session.measure(first, workload())
    assert external(again, "cold") == 0
    assert_hit_rate_above(again, 0.9, tier="external")

    # Another server on that directory, tried to be contaminated: the same prompts, cold.
    second = arm("second", tier)
    apart = session.measure(second, workload())
    assert external(apart, "cold") == 0
    assert_same_output(apart, relative_to=again)

    # Contaminated for certain: the salt is given and known to the directory.
    with pytest.raises(
        WorkloadError, match=r"the cold phase 'cold' was not cold: \d+ of 12384 prompt tokens came from"
    ):
        session.measure(second, workload(salt))

    # And shared on purpose: a revisit of what only the other server has ever computed.
    shared = session.measure(second, workload(salt, mode="shared"))
    assert shared.phase_names == ("restored",)
    assert_hit_rate_above(shared, 0.9, tier="external")
    assert_same_output(shared, relative_to=one)
    assert_no_failed_requests(shared)


# ---------------------------------------------------------------------------------------------------- on a bucket
class Bucket:
    """moto's S3 server with one bucket."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log.open("wb")
        words = ["-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen([sys.executable, *words], stdout=self.log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 60
        while True:
            try:
                requests.put(f"{self.url}/kvoffload", timeout=5).raise_for_status()
                return
            except requests.ConnectionError:
                assert self.process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, "moto did not start"
                time.sleep(0.1)

    def tier(self, prefix: str) -> dict[str, Any]:
        store = {
            "bucket": "kvoffload",
            "endpoint_override": f"127.0.0.1:{self.port}",
            "access_key": ACCESS,
            "secret_key": SECRET,
            "region": "us-east-1",
            "scheme": "http",
        }
        return {"type": "obj", "store_config": store, "prefix": prefix}

    def object_keys(self) -> list[str]:
        text = requests.get(f"{self.url}/kvoffload?list-type=2&max-keys=1000", timeout=10).text
        return re.findall(r"<Key>([^<]+)</Key>", text)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
        self.log.close()


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    made = Bucket(tmp_path / "moto.log")
    yield made
    made.stop()


def test_a_bucket_restores_and_its_keys_are_in_no_artefact(session: RunSession, bucket: Bucket, tmp_path: Path) -> None:
    measured = session.measure(arm("bucket", bucket.tier("run-1")), workload())
    assert external(measured, "cold") == 0
    assert_hit_rate_above(measured, 0.9, tier="external")
    assert_same_output(measured)
    meters = read_meters(measured.phase("restored").delta, vllm_version=measured.server.vllm_version)
    assert (meters.tiers["1:obj"].read_bytes.value or 0) > 0
    assert all(key.startswith("run-1/") for key in bucket.object_keys())
    assert any("NIXL_TELEMETRY_ENABLE=y was set" in text for text in measured.server.differences)

    session.close()
    artefacts = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(path.name.startswith("server-bucket") for path in artefacts)
    assert any(path.parent.name == "measurements" for path in artefacts)
    for path in artefacts:
        raw = path.read_bytes()
        assert SECRET.encode() not in raw, path
        assert ACCESS.encode() not in raw, path
    assert SECRET.encode() not in to_json(measured)


@nightly
def test_two_servers_on_one_bucket(session: RunSession, bucket: Bucket) -> None:
    salt = f"shared-{uuid.uuid4().hex}"
    one = session.measure(arm("first", bucket.tier("both")), workload(salt))
    shared = session.measure(arm("second", bucket.tier("both")), workload(salt, mode="shared"))
    assert_hit_rate_above(shared, 0.9, tier="external")
    assert_same_output(shared, relative_to=one)
    # Another prefix is another tier.
    apart = session.measure(arm("third", bucket.tier("other")), workload(salt, mode="shared"))
    assert external(apart, "restored") == 0


@nightly
@pytest.mark.parametrize("what", ["chunk", "block"])
def test_a_changed_chunk_or_block_finds_nothing_and_says_what_keys_depend_on(
    session: RunSession, tmp_path: Path, what: str
) -> None:
    tier, salt = {"type": "fs", "root_dir": str(tmp_path / "tier")}, f"shared-{uuid.uuid4().hex}"
    session.measure(arm("first", tier), workload(salt))
    other = arm("changed", tier, blocks_per_chunk=2 if what == "chunk" else 1)
    if what == "block":
        # As many tokens in blocks of half the size.
        smaller = dataclasses.replace(other.engine, num_gpu_blocks=80, args=("--block-size", "64"))
        other = dataclasses.replace(other, engine=smaller)
    changed = session.measure(other, workload(salt, mode="shared"))
    assert_no_failed_requests(changed)
    with pytest.raises(MeterAssertionError, match=r"depend on model, dtype, block size, chunk \(blocks_per_chunk\)"):
        assert_hit_rate_above(changed, 0.0, tier="external")


@nightly
@pytest.mark.parametrize("seed", [None, "0"])
def test_the_random_hash_seed_of_old_versions_is_named(
    session: RunSession, tmp_path: Path, seed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    tier, salt = {"type": "fs", "root_dir": str(tmp_path / "tier")}, f"shared-{uuid.uuid4().hex}"
    session.measure(arm("first", tier, version="0.27.1"), workload(salt))
    shared = session.measure(arm("second", tier, version="0.27.1"), workload(salt, mode="shared"))
    if seed is not None:
        assert_hit_rate_above(shared, 0.9, tier="external")
        return
    with pytest.raises(MeterAssertionError, match=r"hash seed: vLLM 0\.27\.1 with sha256 begins its block hashes with"):
        assert_hit_rate_above(shared, 0.0, tier="external")
    assert external(shared, "restored") == 0


@nightly
def test_a_restarted_server_finds_its_directory(session: RunSession, tmp_path: Path) -> None:
    tier = {"type": "fs", "root_dir": str(tmp_path / "tier")}
    restarted = session.measure(arm("disk", tier), workload(mode="restart"))
    assert_hit_rate_above(restarted, 0.9, tier="external")
    assert_same_output(restarted)


@nightly
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("native", {"size_gib": 0.25, "via": "flag"}),
        ("native", {"size_gib": 0.25, "blocks_per_chunk": 4}),
        ("native", {"size_gib": 0.25, "eviction_policy": "arc"}),
        ("example", {}),
        ("multi", {"connectors": [{"kind": "native", "size_gib": 0.25}, {"kind": "example"}]}),
    ],
    ids=["flag", "chunk-4", "arc", "example", "multi"],
)
@pytest.mark.parametrize("version", ["0.32.0", "0.27.1"])
def test_every_kind_restores(session: RunSession, kind: str, options: dict[str, Any], version: str) -> None:
    engine = EngineConfig(kind="cpu", vllm_version=version, num_gpu_blocks=40, max_model_len=4096)
    connector = ConnectorConfig(name=kind, kind=kind, options=options)
    measured = session.measure(Arm(engine=engine, model=ModelConfig(), connector=connector), workload())
    assert external(measured, "cold") == 0
    assert_hit_rate_above(measured, 0.9, tier="external")
    assert_same_output(measured)
