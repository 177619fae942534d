"""Directories, object stores, ports and servers of a tier: each fault found before a boot."""

from __future__ import annotations

import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import requests

from pytest_kvoffload.engine.preflight import ObjectStore
from pytest_kvoffload.engine.preflight.network import check_port, check_server
from pytest_kvoffload.engine.preflight.objectstore import check_object_store
from pytest_kvoffload.engine.preflight.storage import check_tier_dir, filesystem_of

GIB = 2**30


# --------------------------------------------------------------------------------------------- directories
def test_a_directory_is_written_and_left_as_it_was(tmp_path: Path) -> None:
    check = check_tier_dir(tmp_path, wanted_bytes=0)
    assert check.status in {"ok", "warn"}  # warn: the temporary directory of this machine is a tmpfs
    assert check.saw.startswith("writable, ")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_yet_is_not_left_behind(tmp_path: Path) -> None:
    check = check_tier_dir(tmp_path / "a" / "b", wanted_bytes=0)
    assert check.status in {"ok", "warn"}
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_found(tmp_path: Path) -> None:
    blocker = tmp_path / "tier"
    blocker.write_text("x")
    check = check_tier_dir(blocker / "sub", wanted_bytes=0)
    assert (check.status, check.saw) == ("fail", f"{blocker} is a file")
    assert "point root_dir elsewhere" in check.remedy


def test_too_little_room_is_a_warning(tmp_path: Path) -> None:
    check = check_tier_dir(tmp_path, wanted_bytes=2**60)
    assert check.status == "warn"
    assert "1048576.00 TiB free" in check.needed


@pytest.fixture
def tmpfs(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A tmpfs with the mount options of the test's parameter."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", request.param, "tmpfs", str(folder)], check=False)
    if made.returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("tmpfs", ["ro,size=8m"], indirect=True)
def test_a_read_only_directory_is_found(tmpfs: Path) -> None:
    check = check_tier_dir(tmpfs / "kv", wanted_bytes=0)
    assert (check.status, check.saw) == ("fail", f"{tmpfs} cannot be written: Read-only file system")
    assert check.needed == "a directory that this user can write to"


@pytest.mark.parametrize("tmpfs", ["size=2g"], indirect=True)
def test_a_disk_tier_in_memory_is_a_warning(tmpfs: Path) -> None:
    assert filesystem_of(tmpfs) == "tmpfs"
    check = check_tier_dir(tmpfs, wanted_bytes=0)
    assert check.status == "warn"
    assert "this is memory, not a disk" in check.remedy


def test_a_directory_without_permission_is_found(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root is not stopped by modes")
    tmp_path.chmod(0o500)
    check = check_tier_dir(tmp_path, wanted_bytes=0)
    tmp_path.chmod(0o700)
    assert check.status == "fail"
    assert "Permission denied" in check.saw


# ------------------------------------------------------------------------------------------- object stores
@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, str, str]]:
    """A real S3 server (moto) that checks signatures: endpoint, access key and secret key of a user who may all."""
    moto_server = pytest.importorskip("moto.server", reason="needs moto[server]")
    assert moto_server
    boto3 = pytest.importorskip("boto3")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "4"}
    with subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        endpoint = f"127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    with socket.create_connection(("127.0.0.1", port), timeout=1):
                        break
                except OSError:
                    assert server.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            options = {
                "endpoint_url": f"http://{endpoint}",
                "region_name": "us-east-1",
                "aws_access_key_id": "setup",
                "aws_secret_access_key": "setup",
            }
            iam = boto3.client("iam", **options)
            iam.create_user(UserName="kv")  # the first four calls need no valid signature
            policy = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}'
            iam.put_user_policy(UserName="kv", PolicyName="all", PolicyDocument=policy)
            key = iam.create_access_key(UserName="kv")["AccessKey"]
            boto3.client("s3", **options).create_bucket(Bucket="kv-bucket")
            yield endpoint, key["AccessKeyId"], key["SecretAccessKey"]
        finally:
            server.terminate()


def store(s3: tuple[str, str, str], **changes: Any) -> ObjectStore:
    endpoint, access, secret = s3
    fields: dict[str, Any] = {"bucket": "kv-bucket", "endpoint": endpoint, "access_key": access, "secret_key": secret}
    return ObjectStore(**{**fields, **changes})


def test_a_good_store_is_written_and_left_empty(s3: tuple[str, str, str]) -> None:
    import boto3

    check = check_object_store(store(s3, prefix="some/where"), env={})
    assert (check.status, check.saw) == ("ok", "an object was written and deleted again")
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{s3[0]}",
        region_name="us-east-1",
        aws_access_key_id=s3[1],
        aws_secret_access_key=s3[2],
    )
    assert "Contents" not in client.list_objects_v2(Bucket="kv-bucket")


def test_a_wrong_bucket_is_found(s3: tuple[str, str, str]) -> None:
    check = check_object_store(store(s3, bucket="no-such-bucket"), env={})
    assert (check.status, check.saw) == ("fail", "the bucket does not exist (HTTP 404, NoSuchBucket)")
    assert check.remedy == "create the bucket, or correct its name"


def test_a_wrong_access_key_is_found(s3: tuple[str, str, str]) -> None:
    check = check_object_store(store(s3, access_key="AKIAWRONG"), env={})
    assert (check.status, check.saw) == ("fail", "the access key is unknown (HTTP 403, InvalidAccessKeyId)")


def test_a_wrong_secret_key_is_found(s3: tuple[str, str, str]) -> None:
    check = check_object_store(store(s3, secret_key="wrong"), env={})
    assert check.status == "fail"
    assert check.saw == "the secret key does not belong to the access key (HTTP 403, SignatureDoesNotMatch)"
    assert "wrong" not in check.name


def test_keys_come_from_the_servers_environment(s3: tuple[str, str, str]) -> None:
    env = {"AWS_ACCESS_KEY_ID": s3[1], "AWS_SECRET_ACCESS_KEY": s3[2]}
    assert check_object_store(store(s3, access_key=None, secret_key=None), env=env).status == "ok"


def test_a_store_that_speaks_no_tls_is_found(s3: tuple[str, str, str]) -> None:
    check = check_object_store(store(s3, scheme="https"), env={})
    assert check.status == "fail"
    assert check.saw.startswith("TLS failed: ")
    assert 'use scheme "http"' in check.remedy


def test_without_a_signer_the_bucket_is_still_looked_for(
    s3: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "botocore"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "botocore", None)
    check = check_object_store(store(s3), env={})
    assert check.status == "skip"
    assert "pip install 'pytest-kvoffload[s3]'" in check.saw


def test_an_unreachable_store_is_found() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
        check = check_object_store(ObjectStore(bucket="kv", endpoint=endpoint, access_key="a", secret_key="b"), env={})
    assert check.status == "fail"
    assert check.saw.startswith("unreachable: ")
    assert "Connection refused" in check.saw


def test_a_store_without_endpoint_is_found() -> None:
    check = check_object_store(ObjectStore(bucket="kv", endpoint=""), env={})
    assert (check.status, check.saw) == ("fail", "store_config has no endpoint_override")


class Answers(http.server.BaseHTTPRequestHandler):
    """A store that answers every request alike."""

    status: ClassVar[int] = 200
    body: ClassVar[bytes] = b""

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status = 405 if self.command == "DELETE" else self.status
        self.send_response(status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_GET = do_PUT = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("status", "body", "outcome", "saw"),
    [
        (403, b"", "fail", "the keys are refused (HTTP 403)"),
        (403, b"<Error><Code>AccessDenied</Code></Error>", "fail", "the keys may not write to this bucket"),
        (301, b"<Error><Code>PermanentRedirect</Code></Error>", "fail", "the bucket is in another region"),
        (500, b"<html>no xml", "fail", "the store refuses (HTTP 500)"),
        (404, b"<!DOCTYPE x [<!ENTITY a 'b'>]><Error/>", "fail", "the bucket does not exist (HTTP 404)"),
        (503, b"<E xmlns='http://s3'><Code>SlowDown</Code><Message>later</Message></E>", "fail", "later (HTTP 503"),
        (200, b"", "warn", "deleting it was refused (HTTP 405)"),
    ],
)
def test_what_other_stores_answer(
    status: int, body: bytes, outcome: str, saw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answers, "status", status)
    monkeypatch.setattr(Answers, "body", body)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            endpoint = f"127.0.0.1:{server.server_address[1]}"
            check = check_object_store(
                ObjectStore(bucket="kv", endpoint=endpoint, access_key="a", secret_key="b"), env={}
            )
        finally:
            server.shutdown()
    assert check.status == outcome
    assert saw in check.saw


def test_a_silent_store_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_kvoffload.engine.preflight import objectstore

    monkeypatch.setattr(objectstore, "_TIMEOUT_SECONDS", (0.5, 0.5))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        check = check_object_store(ObjectStore(bucket="kv", endpoint=endpoint, access_key="a", secret_key="b"), env={})
    assert check.status == "fail"
    assert check.saw.startswith("no answer within ")


def test_requests_is_there_for_the_plain_install() -> None:
    assert requests.__version__


# -------------------------------------------------------------------------------------- ports and servers
def test_a_used_port_is_found_and_its_holder_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        check = check_port(port)
        assert check.status == "fail"
        assert check.saw.startswith(f"in use by process {os.getpid()} (")
        assert check_server("LMCache server", "127.0.0.1", port).status == "ok"
    assert check_port(port).status == "ok"
    gone = check_server("LMCache server", "127.0.0.1", port)
    assert (gone.status, gone.saw) == ("fail", "unreachable: Connection refused")
    assert gone.name == f"LMCache server 127.0.0.1:{port}"


def test_a_listener_on_all_addresses_is_found_too() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        assert check_port(listener.getsockname()[1]).status == "fail"


def test_an_impossible_port_or_host_is_said() -> None:
    assert check_port(70000).saw == "no such port"
    assert check_port(0, host="192.0.2.1").saw.startswith("cannot be bound: ")
