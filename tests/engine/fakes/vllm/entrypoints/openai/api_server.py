"""A stand-in for vLLM's API server with faults on demand (``FAKE_VLLM``), standard library only.

``FAKE_VLLM`` is a word: ``serve`` (default), ``never-ready``, ``unhealthy``, ``refuse`` (dies as vLLM does when the
engine core fails), ``silent-death`` (exit code 3 without a word), ``port-taken`` (once, remembered in
``FAKE_VLLM_STATE``), ``stubborn`` (ignores SIGTERM), ``child`` (starts a detached child that ignores SIGTERM),
``shared-memory`` (a child holds some), ``stuck`` (never ready, holds shared memory and ignores SIGTERM), ``talkative``
and ``talkative-refuse`` (print arguments and environment, as vLLM does with its own, and serve or die),
``other-config`` (the effective configuration differs from what was asked).
``FAKE_VLLM_SAYS`` is printed first, whatever the fault.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

_CORE = "(EngineCore pid=11) ERROR 11-29 17:00:00 [core.py:900] "
REFUSAL = "\n".join(
    (
        f"{_CORE}EngineCore failed to start.",
        f"{_CORE}Traceback (most recent call last):",
        f'{_CORE}  File "/x/vllm/v1/kv_offload/cpu/manager.py", line 90, in __init__',
        f"{_CORE}    raise ValueError(",
        f"{_CORE}ValueError: Unknown cache policy: 'LRU'. Supported: ['lru', 'arc']",
        "(APIServer pid=10) Traceback (most recent call last):",
        '(APIServer pid=10)   File "/x/vllm/v1/engine/utils.py", line 900, in wait_for_engine_startup',
        "(APIServer pid=10) RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {'EngineCore': 1}",
    )
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--host")
    parser.add_argument("--model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--num-gpu-blocks-override", type=int, default=80)
    parser.add_argument("--data-parallel-size", type=int, default=1)
    parser.add_argument("--kv-transfer-config", type=json.loads)
    args, _ = parser.parse_known_args()
    fault = os.environ.get("FAKE_VLLM", "serve")
    print("INFO 11-29 17:00:00 [api_server.py:1] fake server starts", flush=True)
    print(os.environ.get("FAKE_VLLM_SAYS", ""), flush=True)
    if fault.startswith("talkative"):
        shown = {**vars(args), "environment": dict(os.environ)}
        print(f"INFO 11-29 17:00:00 [api_utils.py:9] non-default args: {shown}", flush=True)
        print(f"(EngineCore pid=11) INFO 11-29 17:00:01 config: {json.dumps(shown, default=str)}", flush=True)
        sys.stdout.write("Loading: 10%\r")
    if fault == "talkative-refuse":
        sys.exit(f"{_CORE}ValueError: cannot use {args.kv_transfer_config} with {sys.argv}")
    if fault == "refuse":
        sys.exit(REFUSAL)
    if fault == "silent-death":
        sys.exit(3)
    if fault == "never-ready":
        print("INFO 11-29 17:00:01 [loader.py:1] Loading weights for ever", flush=True)
        time.sleep(600)
    if fault == "stuck":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        region = SharedMemory(create=True, size=4096)
        resource_tracker.unregister(f"/{region.name}", "shared_memory")  # nobody but the guard removes it
        Path(os.environ["FAKE_VLLM_STATE"]).write_text(region.name)
        time.sleep(600)
    if fault == "port-taken":
        state = Path(os.environ["FAKE_VLLM_STATE"])
        if not state.exists():
            state.write_text(str(args.port))
            sys.exit("OSError: [Errno 98] Address already in use")
    if fault == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if fault == "child":
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        Path(os.environ["FAKE_VLLM_STATE"]).write_text(str(child.pid))
    if fault == "shared-memory":
        # A child with memory of its own, as an engine core has; killed, it cannot remove it itself.
        code = (
            "import sys, time; from multiprocessing.shared_memory import SharedMemory; from pathlib import Path\n"
            "m = SharedMemory(create=True, size=4096); Path(sys.argv[1]).write_text(m.name); time.sleep(600)"
        )
        subprocess.Popen([sys.executable, "-c", code, os.environ["FAKE_VLLM_STATE"]])
        while not Path(os.environ["FAKE_VLLM_STATE"]).exists():
            time.sleep(0.01)
    engine_id = (args.kv_transfer_config or {}).get("engine_id")
    if engine_id:
        Path(f"/dev/shm/vllm_offload_{engine_id}.mmap").write_bytes(b"region")
    serve(args, fault)


def serve(args: argparse.Namespace, fault: str) -> None:
    config: Any = args.kv_transfer_config
    if fault == "other-config" and config:
        config = {**config, "kv_connector": "LMCacheMPConnector"}
    ranks = args.data_parallel_size
    # Each rank shows the blocks of all of them, as vLLM's do.
    info = f'vllm:cache_config_info{{block_size="128",num_gpu_blocks="{ranks * args.num_gpu_blocks_override}",engine='
    metrics = "# TYPE vllm:cache_config_info gauge\n" + "".join(f'{info}"{rank}"}} 1.0\n' for rank in range(ranks))
    answers: dict[str, Any] = {
        "/version": {"version": "0.32.0"},
        "/v1/models": {"data": [{"id": args.served_model_name, "max_model_len": args.max_model_len}]},
        "/server_info": {"vllm_config": {"kv_transfer_config": config}, "environment": dict(os.environ)},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/health":
                self.answer(503 if fault == "unhealthy" else 200, b"")
            elif path == "/metrics":
                self.answer(200, metrics.encode())
            elif path in answers:
                self.answer(200, json.dumps(answers[path]).encode())
            else:
                self.answer(404, b"")

        def do_POST(self) -> None:
            self.answer(200, b"")
            if self.path == "/die":
                print(REFUSAL, flush=True)
                os._exit(1)

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
