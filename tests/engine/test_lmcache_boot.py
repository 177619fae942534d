"""What a boot says of LMCache's silent failures: a tier that has given up, a server of another transfer mode."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MappingProxyType

import pytest

from pytest_kvoffload.engine import RunningServer
from pytest_kvoffload.engine.connectors import ConnectorKind, HelperSpec, LaunchContext, LaunchParts, registry
from pytest_kvoffload.engine.options import OptionReader
from pytest_kvoffload.errors import BootError, TierDegradedError
from pytest_kvoffload.records import ConnectorConfig

FakeBoot = Callable[..., RunningServer]
GIVEN_UP = (
    "(Worker pid=12) [2026-01-01 00:00:00,000] LMCache ERROR: Failed to initialize LMCacheManager components: "
    "Traceback (most recent call last):\n"
    '(Worker pid=12)   File "/x/lmcache/v1/gpu_connector/__init__.py", line 231, in CreateGPUConnector\n'
    '(Worker pid=12)     raise RuntimeError(f"No supported {torch_device_type} connector found.")\n'
    "(Worker pid=12) RuntimeError: No supported cpu connector found.\n"
    "(Worker pid=12) . System will operate in degraded mode (recompute)."
)
NO_ANSWER = (
    "(Worker pid=12) ERROR 11-29 17:00:00 [worker.py:1] ConnectionError: LMCache server did not respond to "
    "register_kv_caches within 25.0s. Is the server running?"
)
OTHER_MODE = (
    "import http.server as h, sys\n"
    "print('[2026-01-01 00:00:00,000] LMCache ERROR: No handler registered for operation "
    "RequestType.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT', flush=True)\n"
    "h.HTTPServer(('127.0.0.1', int(sys.argv[1])), h.SimpleHTTPRequestHandler).serve_forever()"
)


def test_a_server_whose_tier_has_given_up_is_refused_by_name_and_stopped(fake_boot: FakeBoot) -> None:
    with pytest.raises(TierDegradedError) as caught:
        fake_boot(env={"FAKE_VLLM_SAYS": GIVEN_UP})
    text = str(caught.value)
    assert "the server of 'native' runs without its tier: LMCache's in-process mode has no connector for this" in text
    assert "platform (RuntimeError: No supported cpu connector found.)" in text
    assert "what to do: use kind lmcache_inprocess" in text
    assert "log: " in text


def test_what_the_lmcache_server_said_explains_what_vllm_saw_as_silence(
    fake_boot: FakeBoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(options: OptionReader, context: LaunchContext) -> LaunchParts:
        port = context.port("store")
        helper = HelperSpec(
            name="lmcache-server", command=(sys.executable, "-c", OTHER_MODE, str(port)), ready_port=port
        )
        return LaunchParts(kv_transfer_config={"kv_connector": "LMCacheMPConnector"}, helpers=(helper,))

    kind = ConnectorKind(name="helped", summary="for this test", options=(), build=build)
    kinds = MappingProxyType({**registry.KINDS, "helped": kind})
    monkeypatch.setattr("pytest_kvoffload.engine.connectors.registry.KINDS", kinds)
    with pytest.raises(BootError) as caught:
        fake_boot(
            "silent-death",
            connector=ConnectorConfig(name="mp", kind="helped"),
            env={"FAKE_VLLM_SAYS": NO_ANSWER},
        )
    assert "does not speak the transfer mode of this client" in caught.value.cause
    assert "start it with --supported-transfer-mode engine_driven on a CPU" in caught.value.cause
    assert "said by lmcache-server" in caught.value.cause
    assert "the LMCache server did not take the KV caches within 25.0 s" in caught.value.cause
