"""A real Prometheus on loopback that scrapes one exposition; for the parity tests."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_kvoffload.errors import ScrapeError
from pytest_kvoffload.metrics.fetch import get

CONFIG = """\
global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}
scrape_configs:
  - job_name: test
    sample_limit: 0
    static_configs: [{{targets: ["{target}"]}}]
"""


def need_prometheus() -> str:
    """Return the binary, or skip with the way to get it."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip(
            "no prometheus binary on PATH: apt-get install prometheus (Debian), or a release from prometheus.io"
        )
    return binary


def query(url: str, expression: str, *, at_seconds: float | None = None) -> list[dict[str, Any]]:
    """Run an instant query."""
    params = {"query": expression} if at_seconds is None else {"query": expression, "time": f"{at_seconds:.3f}"}
    reply = get(f"{url}/api/v1/query", params=params, timeout_seconds=20)
    answer = json.loads(reply.body)
    assert answer["status"] == "success", answer
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def scraped(url: str, selector: str, *, series: int = 1) -> float:
    """Wait for a scrape that has so many of these series, and return when it was.

    Asking for that instant later is safe: "now" may fall behind a scrape that failed on a busy machine, after which
    Prometheus takes the series for gone.
    """
    found: list[float] = []

    def seen() -> bool:
        found[:] = [float(answer["value"][1]) for answer in query(url, f"timestamp({selector})")]
        return len(found) >= series

    wait_until(url, seen, what=f"a scrape with {series} x {selector}")
    return max(found)


def wait_until(url: str, ready: Callable[[], bool], *, what: str, seconds: float = 60.0) -> None:
    """Poll until the condition holds; the server may still be starting."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if ready():
                return
        except ScrapeError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{url}: {what} did not come about in {seconds:g} s")


@contextmanager
def prometheus(target_url: str, folder: Path, *, interval: str = "2s") -> Iterator[str]:
    """Run a Prometheus that scrapes ``target_url`` + ``/metrics``; yields its URL."""
    binary = need_prometheus()
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(interval=interval, target=target_url.removeprefix("http://")))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = folder / "prometheus.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address={address}",
                "--storage.tsdb.retention.time=1d",
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    url = f"http://{address}"
    try:
        wait_until(url, lambda: get(f"{url}/-/ready").status == 200, what="readiness")
        yield url
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log.read_text()[-2000:]}") from error
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
