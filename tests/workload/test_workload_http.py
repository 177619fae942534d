from __future__ import annotations

import pytest
from fakes.fake_vllm import FakeVLLM

from pytest_kvoffload.workload.http import is_loopback, post


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8000/x", True),
        ("http://localhost:8000", True),
        ("http://[::1]:8000", True),
        ("http://10.0.0.3:8000", False),
        ("http://localhost.example.com", False),
        ("not a url", False),
    ],
)
def test_loopback(url: str, local: bool) -> None:
    assert is_loopback(url) is local


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    with FakeVLLM() as server:
        answer = post(f"{server.url}/tokenize", json={"prompt": "ab"}, timeout_seconds=5.0)
    assert answer.json()["count"] == 2
