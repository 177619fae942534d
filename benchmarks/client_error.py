"""What the streaming client adds to time to first token, beside ``vllm bench serve``.

A stub answers each request after a delay that is known, so whatever a client reports beyond that delay is its own
doing and the stub's. The stub is an event loop of bare sockets in a process of its own that answers with bytes made
beforehand, the first token at once and the rest a little later. It notes for every request how late it was itself, and
that is taken off: it travels back in the usage to this project's client, and by request id for the other. Both clients
get the same stub, the same number of requests and the same prompt length, alternating, in one run.

    python benchmarks/client_error.py --vllm-python ~/.cache/.../bin/python --tokenizer MODEL_DIRECTORY

Without ``--vllm-python`` only this project's client is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from pytest_kvoffload.records import RequestSpec
from pytest_kvoffload.stats import quantile
from pytest_kvoffload.workload.client import Drive, Target
from pytest_kvoffload.workload.plan import PlannedPhase

OUTPUT_TOKENS = 4
REST_SECONDS = 0.05
"""Time from the first token to the rest."""
PROMPT_TOKENS = 512

VLLM_BENCH = """
import argparse, sys
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args(sys.argv[1:]))
"""


def _event(body: object) -> bytes:
    data = b"data: " + json.dumps(body).encode() + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _answers() -> tuple[bytes, bytes]:
    """Return the bytes of the head with the first token, and of a plain JSON answer."""
    choice = {"index": 0, "text": "a", "token_ids": [7], "finish_reason": None}
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    first = head + _event({"id": "x", "object": "text_completion", "choices": [choice]})
    models = json.dumps({"object": "list", "data": [{"id": "stub", "object": "model"}]}).encode()
    plain = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(models)}\r\n\r\n".encode()
    return first, plain + models


def _rest(late_seconds: float) -> bytes:
    """Return what follows the first token; the stub's own lateness in microseconds stands for the cached tokens."""
    choice = {"index": 0, "text": "a", "token_ids": [7], "finish_reason": None}
    usage: dict[str, object] = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": OUTPUT_TOKENS}
    usage |= {"total_tokens": PROMPT_TOKENS + OUTPUT_TOKENS}
    usage |= {"prompt_tokens_details": {"cached_tokens": round(late_seconds * 1e6)}}
    more = b"".join(_event({"id": "x", "choices": [choice]}) for _ in range(OUTPUT_TOKENS - 1))
    return more + _event({"id": "x", "choices": [], "usage": usage}) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class _Stub(asyncio.Protocol):
    def __init__(self, delay_seconds: float, late: dict[str, float]) -> None:
        self.delay, self.late, self.buffer = delay_seconds, late, bytearray()
        self.first, self.plain = _ANSWERS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self.buffer[:end]).lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n")[0]) if at >= 0 else 0
        if len(self.buffer) < end + 4 + length:
            return
        del self.buffer[: end + 4 + length]
        if b"/v1/completions" not in head:
            self.transport.write(self.plain)
            return
        close = b"connection: close" in head
        at = head.find(b"x-request-id:")
        name = head[at + 13 :].split(b"\r\n")[0].strip().decode() if at >= 0 else ""
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + self.delay, self.answer, now, close, name)

    def answer(self, received: float, close: bool, name: str) -> None:
        self.transport.write(self.first)
        late = time.perf_counter() - received - self.delay
        if name:
            self.late[name] = late
        # When all streams answer at once, the rest must not stand between one first token and the next.
        asyncio.get_running_loop().call_later(REST_SECONDS, self.finish, close, late)

    def finish(self, close: bool, late: float) -> None:
        self.transport.write(_rest(late))
        if close:
            self.transport.close()


_ANSWERS = _answers()


def _serve(pipe: Connection, delay_seconds: float) -> None:
    late: dict[str, float] = {}

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Stub(delay_seconds, late), "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        while True:
            command = await loop.run_in_executor(None, pipe.recv)
            pipe.send(dict(late))
            late.clear()
            if command == "stop":
                return

    asyncio.run(run())


def ours(url: str, streams: int, requests: int) -> list[float]:
    """Measure with this project's client; return times to first token without the stub's own lateness."""
    prompt = tuple(range(100, 100 + PROMPT_TOKENS))
    specs = tuple(
        RequestSpec(index=i, session=i, turn=0, prompt_token_ids=prompt, prefix_tokens=0, output_tokens=OUTPUT_TOKENS)
        for i in range(requests)
    )
    drive = Drive(
        PlannedPhase(name="bench", requests=specs, preparation="none", concurrency=streams),
        Target(url=url, model="stub"),
    )
    drive.run(lambda: None)
    samples = drive.samples()
    failed = [sample.error for sample in samples if not sample.ok]
    if failed or len(samples) != requests:
        raise SystemExit(f"{len(failed)} of {requests} requests failed: {failed[:1]}")
    return [
        sample.ttft_seconds - (sample.cached_tokens or 0) / 1e6 for sample in samples if sample.ttft_seconds is not None
    ]


def theirs(python: str, tokenizer: str, url: str, streams: int, requests: int) -> list[float]:
    """Measure with ``vllm bench serve``; return times to first token."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-c", VLLM_BENCH, "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions"]
        command += ["--model", "stub", "--tokenizer", tokenizer, "--dataset-name", "random"]
        command += ["--random-input-len", str(PROMPT_TOKENS // 4), "--random-output-len", str(OUTPUT_TOKENS)]
        command += ["--num-prompts", str(requests), "--max-concurrency", str(streams), "--save-result"]
        command += ["--save-detailed", "--result-dir", folder, "--result-filename", "r.json", "--disable-tqdm"]
        command += ["--ready-check-timeout-sec", "10", "--request-id-prefix", "r-"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise SystemExit(f"vllm bench serve failed:\n{done.stderr[-2000:]}")
        detailed = json.loads((Path(folder) / "r.json").read_text(encoding="utf-8"))
    return [float(value) for value in detailed["ttfts"]]


def main() -> int:
    """Run the comparison and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--vllm-python", help="interpreter that has vllm, for the comparison")
    parser.add_argument("--tokenizer", help="directory of a tokenizer, for vllm bench serve")
    parser.add_argument("--delay-ms", type=float, default=100.0)
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests-per-stream", type=int, default=8)
    args = parser.parse_args()
    delay = args.delay_ms / 1000
    here, there = multiprocessing.Pipe()
    stub = multiprocessing.get_context("spawn").Process(target=_serve, args=(there, delay), daemon=True)
    stub.start()
    url = f"http://127.0.0.1:{here.recv()}"
    ours(url, 8, 32)  # warm
    here.send("next")
    here.recv()
    print(f"added to a TTFT of {args.delay_ms:g} ms, milliseconds; {args.rounds} rounds, alternating")
    print(f"{'streams':>7}  {'client':<18} {'n':>5} {'p50':>8} {'p99':>8} {'max':>8}")
    verdict = True
    for streams in args.streams:
        requests = max(200, streams * args.requests_per_stream)
        p99: dict[str, float] = {}
        collected: dict[str, list[float]] = {}
        for _ in range(args.rounds):
            for name in ("pytest-kvoffload", "vllm bench serve"):
                if name == "pytest-kvoffload":
                    times = ours(url, streams, requests)
                elif args.vllm_python:
                    times = theirs(args.vllm_python, args.tokenizer, url, streams, requests)
                else:
                    continue
                here.send("next")
                late = here.recv()
                if name != "pytest-kvoffload":
                    # Requests are numbered in the order of the times that it reports.
                    times = [value - late[f"r-{index}"] for index, value in enumerate(times)]
                collected.setdefault(name, []).extend(1000 * (value - delay) for value in times)
        for name, added in collected.items():
            p99[name] = quantile(added, 0.99)
            print(
                f"{streams:>7}  {name:<18} {len(added):>5} {quantile(added, 0.5):>8.2f} {p99[name]:>8.2f} "
                f"{max(added):>8.2f}"
            )
        if len(p99) == 2:
            ratio = p99["pytest-kvoffload"] / p99["vllm bench serve"]
            verdict = verdict and ratio <= 0.5
            print(f"{'':>7}  added p99 is {ratio:.2f} of that of vllm bench serve (aim: at most 0.5)")
    here.send("stop")
    here.recv()
    stub.join(10)
    return 0 if verdict else 1


if __name__ == "__main__":
    sys.exit(main())
