"""A real vllm-router in front of engines, real or fake."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import requests

ROUTER = shutil.which("vllm-router", path=str(Path(sys.executable).parent))


@contextlib.contextmanager
def router(*engines: str, policy: str, log: Path) -> Iterator[str]:
    """Start vllm-router in front of these engines."""
    assert ROUTER is not None
    with socket.socket() as free, socket.socket() as other:
        free.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, metrics = free.getsockname()[1], other.getsockname()[1]
    words = [ROUTER, "--host", "127.0.0.1", "--port", str(port), "--policy", policy, "--prometheus-port", str(metrics)]
    with log.open("wb") as file:
        process = subprocess.Popen([*words, "--worker-urls", *engines], stdout=file, stderr=subprocess.STDOUT)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while True:
            with contextlib.suppress(requests.RequestException):
                if requests.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
