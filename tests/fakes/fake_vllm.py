"""A small vLLM over HTTP for tests: streaming completions, real metric names, a device cache and a tier that are LRU.

It computes nothing, but its caches are true: blocks are keyed by everything before them (and the cache salt), only
full blocks are cached, hits are prefixes, the device evicts the least recently used block, stores go to the tier in
whole chunks and a reset clears the device only. Outputs depend on the prompt, so that wrong reuse can be staged.

    with FakeVLLM(FakeConfig(num_gpu_blocks=20, tier_blocks=400)) as server:
        server.info          # a ServerInfo, as a booted server would give
        server.check()       # raises ServerDiedError after server.die()
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pytest_kvoffload.errors import ServerDiedError
from pytest_kvoffload.records import ServerInfo

BYTES_PER_TOKEN = 100


@dataclass(slots=True, kw_only=True)
class FakeConfig:
    """What the fake is and how it misbehaves; may be changed while it runs."""

    model: str = "fake-model"
    version: str = "0.32.0"
    block_size: int = 16
    num_gpu_blocks: int = 40
    max_model_len: int = 4096
    tier_blocks: int = 0
    """Capacity of the tier; 0 is a server without a connector."""
    blocks_per_chunk: int = 1
    seconds_per_token: float = 0.0
    """Cost of a token that is computed."""
    seconds_per_load: float = 0.0
    """Cost of a load from the tier, whatever its size."""
    seconds_per_output_token: float = 0.0
    dev_mode: bool = True
    tokenize: bool = True
    token_ids: bool = True
    """Whether ``return_token_ids`` is understood."""
    prompt_details: bool = True
    """``--enable-prompt-tokens-details``."""
    refuse_resets: int = 0
    """How many resets are refused before one is done."""
    refuse_always: bool = False
    wrong_after_load: bool = False
    """A restored request generates another text."""
    fail_every: int = 0
    """Every n-th completion answers HTTP 500."""
    break_every: int = 0
    """Every n-th completion ends its stream early."""
    hang: bool = False
    """Completions never answer."""
    deliver_late_seconds: float = 0.0
    """Time that the front end loses after the engine had the first token."""
    keep_open: bool = False
    """Connections stay open after an answer, whatever the client asked for."""
    always_running: int = 0
    """Value of the running gauge on top of the truth."""
    write_in_flight: float = 0.0
    """Value of the gauge of what transfers pin in the tier."""
    hide_metrics: tuple[str, ...] = ()
    """Prefixes of metrics that are not exposed."""
    die_after: int | None = None
    """Stop serving after that many completions."""
    kv_event_sources: dict[str, dict[str, str]] | None = None
    """What ``/kv_event_sources`` answers; ``None`` is a vLLM without it."""


@dataclass(slots=True, kw_only=True)
class _Meters:
    counters: dict[tuple[str, str], float] = field(default_factory=dict)
    ttfts: list[float] = field(default_factory=list)

    def add(self, name: str, value: float, label: str = "") -> None:
        self.counters[name, label] = self.counters.get((name, label), 0.0) + value


class FakeVLLM:
    """The server. Thread-safe; every instance has a port of its own."""

    def __init__(self, config: FakeConfig | None = None) -> None:
        self.config = config or FakeConfig()
        self.lock = threading.Lock()
        self.device: OrderedDict[str, None] = OrderedDict()
        self.tier: OrderedDict[str, None] = OrderedDict()
        self.meters = _Meters()
        self.running = self.peak = 0
        self.completions = 0
        self.requests: list[dict[str, Any]] = []
        self.resets: list[bool] = []
        self.dead = False
        self.started = time.time()
        self._server = _QuietServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------- what a RunningServer offers
    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def info(self) -> ServerInfo:
        config = self.config
        transfer: dict[str, Any] | None = None
        if config.tier_blocks:
            transfer = {
                "kv_connector": "OffloadingConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "cpu_bytes_to_use": config.tier_blocks * config.block_size * BYTES_PER_TOKEN,
                    "blocks_per_chunk": config.blocks_per_chunk,
                },
            }
        return ServerInfo(
            url=self.url,
            metrics_urls=(f"{self.url}/metrics",),
            engine_kind="attach",
            model=config.model,
            vllm_version=config.version,
            max_model_len=config.max_model_len,
            block_size_tokens=config.block_size,
            num_gpu_blocks=config.num_gpu_blocks,
            kv_transfer_config=transfer if config.dev_mode else None,
            resets=config.dev_mode,
        )

    def check(self) -> None:
        if self.dead:
            raise ServerDiedError("the server died: RuntimeError: staged death")

    def die(self) -> None:
        """Stop serving, as a crashed engine does."""
        self.dead = True
        threading.Thread(target=self.stop, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> FakeVLLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.dead:
            self.stop()

    # -------------------------------------------------------------------------------------------- caching
    def _keys(self, prompt: list[int], salt: str) -> list[str]:
        size, digest, keys = self.config.block_size, hashlib.sha256(salt.encode()), []
        for start in range(0, len(prompt) - size + 1, size):
            digest.update(json.dumps(prompt[start : start + size]).encode())
            keys.append(digest.hexdigest())
        return keys

    def admit(self, prompt: list[int], salt: str) -> tuple[int, int]:
        """Look a prompt up, move its blocks, and return the tokens that hit the device and the tier."""
        config, meters = self.config, self.meters
        size = config.block_size
        with self.lock:
            keys = self._keys(prompt, salt)
            usable = (len(prompt) - 1) // size
            local = _prefix(keys[:usable], self.device)
            chunk = config.blocks_per_chunk
            external = 0
            if config.tier_blocks:
                for start in range(0, len(keys) - chunk + 1, chunk):
                    if not all(key in self.tier for key in keys[start : start + chunk]):
                        break
                    external = start + chunk
                external = max(0, external - local)
            for key in reversed(keys):
                self.device[key] = None
                self.device.move_to_end(key)
            while len(self.device) > config.num_gpu_blocks - 1:
                self.device.popitem(last=False)
            self._store(keys, external * size)
            meters.add("prompt_tokens", len(prompt))
            meters.add("prefix_cache_queries", len(prompt))
            meters.add("prefix_cache_hits", local * size)
            if config.tier_blocks:
                meters.add("external_prefix_cache_queries", len(prompt) - local * size)
                meters.add("external_prefix_cache_hits", external * size)
            sources = {
                "local_compute": len(prompt) - (local + external) * size,
                "local_cache_hit": local * size,
                "external_kv_transfer": external * size,
            }
            for source, tokens in sources.items():
                meters.add("prompt_tokens_by_source", tokens, source)
            meters.add("prompt_tokens_cached", (local + external) * size)
            for source, tokens in (("device", local * size), ("host", external * size)):
                meters.add("prompt_tokens_cached_by_source", tokens, source)
            return local * size, external * size

    def _store(self, keys: list[str], loaded_tokens: int) -> None:
        config, meters, chunk = self.config, self.meters, self.config.blocks_per_chunk
        if not config.tier_blocks:
            return
        if loaded_tokens:
            meters.add("kv_offload_load_bytes", loaded_tokens * BYTES_PER_TOKEN)
            meters.add("kv_offload_load_time", max(config.seconds_per_load, 1e-4))
        whole = keys[: len(keys) // chunk * chunk]
        new = [key for key in whole if key not in self.tier]
        if len(whole) > config.tier_blocks:
            meters.add("kv_offload_allocation_failure", 1)
            return
        for key in whole:
            self.tier[key] = None
            self.tier.move_to_end(key)
        while len(self.tier) > config.tier_blocks:
            self.tier.popitem(last=False)
        if new:
            meters.add("kv_offload_store_bytes", len(new) * config.block_size * BYTES_PER_TOKEN)
            meters.add("kv_offload_store_time", 1e-3)

    def reset(self, external: bool) -> bool:
        with self.lock:
            if self.running or self.config.refuse_always or self.config.refuse_resets > 0:
                self.config.refuse_resets -= 1
                return False
            self.device.clear()
            if external:
                self.tier.clear()
            self.resets.append(external)
            return True

    # -------------------------------------------------------------------------------------------- metrics
    def exposition(self) -> str:
        config, lines = self.config, []
        base = f'model_name="{config.model}",engine="0"'
        with self.lock:
            counters = dict(self.meters.counters)
            ttfts, running = list(self.meters.ttfts), self.running
        names = {
            "prompt_tokens": "",
            "prefix_cache_queries": "",
            "prefix_cache_hits": "",
            "prompt_tokens_cached": "",
            "num_preemptions": "",
            "external_prefix_cache_queries": "",
            "external_prefix_cache_hits": "",
            "prompt_tokens_by_source": "source",
            "prompt_tokens_cached_by_source": "source",
        }
        offload = ("store_bytes", "load_bytes", "store_time", "load_time", "allocation_failure")
        if config.tier_blocks:
            names |= {f"kv_offload_{name}": "" for name in offload}
        for name, label in names.items():
            lines += [f"# HELP vllm:{name}_total Fake.", f"# TYPE vllm:{name}_total counter"]
            late = name.startswith("kv_offload")
            found = {tag: value for (key, tag), value in counters.items() if key == name}
            if not found and not late and not label:
                found = {"": 0.0}
            for tag, value in found.items():
                extra = f',{label}="{tag}"' if label else ""
                lines.append(f"vllm:{name}_total{{{base}{extra}}} {value}")
        lines += ["# HELP vllm:num_requests_running Fake.", "# TYPE vllm:num_requests_running gauge"]
        lines.append(f"vllm:num_requests_running{{{base}}} {running + config.always_running}")
        if config.tier_blocks:
            lines.append("# TYPE vllm:kv_offload_cpu_cache_write_usage_perc gauge")
            lines.append(f"vllm:kv_offload_cpu_cache_write_usage_perc{{{base}}} {config.write_in_flight}")
        lines += ["# HELP vllm:cache_config_info Fake.", "# TYPE vllm:cache_config_info gauge"]
        lines.append(
            f'vllm:cache_config_info{{block_size="{config.block_size}",num_gpu_blocks="{config.num_gpu_blocks}",'
            f'enable_prefix_caching="True",engine="0"}} 1.0'
        )
        lines += ["# HELP vllm:time_to_first_token_seconds Fake."]
        lines += ["# TYPE vllm:time_to_first_token_seconds histogram"]
        bounds = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5)
        for bound in bounds:
            count = sum(1 for value in ttfts if value <= bound)
            lines.append(f'vllm:time_to_first_token_seconds_bucket{{{base},le="{bound}"}} {count}')
        lines.append(f'vllm:time_to_first_token_seconds_bucket{{{base},le="+Inf"}} {len(ttfts)}')
        lines.append(f"vllm:time_to_first_token_seconds_count{{{base}}} {len(ttfts)}")
        lines.append(f"vllm:time_to_first_token_seconds_sum{{{base}}} {sum(ttfts)}")
        lines += ["# HELP process_start_time_seconds Fake.", "# TYPE process_start_time_seconds gauge"]
        lines.append(f"process_start_time_seconds {self.started}")
        hidden = tuple(config.hide_metrics)
        if hidden:
            lines = [line for line in lines if not any(name in line for name in hidden)]
        return "\n".join(lines) + "\n"

    # ----------------------------------------------------------------------------------------- completions
    def output(self, prompt: list[int], count: int, external: int) -> list[int]:
        """Return the tokens that this prompt generates."""
        seed = hashlib.sha256(json.dumps(prompt).encode()).digest()
        ids = [seed[position % len(seed)] % 90 + 10 for position in range(count)]
        if self.config.wrong_after_load and external and len(ids) > 1:
            ids[1] = ids[1] % 90 + 11
        return ids


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is not an event."""


def _prefix(keys: list[str], cache: Mapping[str, None]) -> int:
    count = 0
    for key in keys:
        if key not in cache:
            break
        count += 1
    return count


def _handler(fake: FakeVLLM) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: object) -> None:
            """Tests read no access log."""

        def _send(self, status: int, body: bytes, content_type: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _json(self, status: int, body: object) -> None:
            self._send(status, json.dumps(body).encode())

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path == "/health":
                self._send(200, b"")
            elif path == "/metrics":
                self._send(200, fake.exposition().encode(), "text/plain; version=0.0.4; charset=utf-8")
            elif path == "/version":
                self._json(200, {"version": fake.config.version})
            elif path == "/v1/models":
                model = {"id": fake.config.model, "object": "model", "max_model_len": fake.config.max_model_len}
                self._json(200, {"object": "list", "data": [model]})
            elif path == "/kv_event_sources" and fake.config.kv_event_sources is not None:
                self._json(200, fake.config.kv_event_sources)
            elif path == "/server_info" and fake.config.dev_mode:
                self._json(200, {"vllm_config": {"kv_transfer_config": fake.info.kv_transfer_config}})
            else:
                self._json(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            parts = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if parts.path == "/reset_prefix_cache" and fake.config.dev_mode:
                external = parse_qs(parts.query).get("reset_external") == ["true"]
                self._json(200, {"success": fake.reset(external)})
            elif parts.path == "/tokenize" and fake.config.tokenize:
                tokens = _tokenize(json.loads(raw)["prompt"])
                self._json(200, {"tokens": tokens, "count": len(tokens), "max_model_len": fake.config.max_model_len})
            elif parts.path == "/v1/completions":
                self._completion(json.loads(raw))
            else:
                self._json(404, {"detail": "Not Found"})

        def _completion(self, body: dict[str, Any]) -> None:
            config = fake.config
            with fake.lock:
                fake.completions += 1
                number = fake.completions
                fake.requests.append(body)
            if config.die_after is not None and number > config.die_after:
                fake.die()
                self.close_connection = True
                return
            if config.fail_every and number % config.fail_every == 0:
                self._json(500, {"error": {"message": "staged failure", "code": 500}})
                return
            if config.hang:
                time.sleep(30)
                return
            asked = body["prompt"]
            prompt = _tokenize(asked) if isinstance(asked, str) else list(asked)
            if len(prompt) + body["max_tokens"] > config.max_model_len:
                self._json(400, {"error": {"message": "This model's maximum context length is exceeded", "code": 400}})
                return
            begun = time.perf_counter()
            with fake.lock:
                fake.running += 1
                fake.peak = max(fake.peak, fake.running)
            local, external = fake.admit(prompt, body.get("cache_salt") or "")
            cost = (len(prompt) - local - external) * config.seconds_per_token
            time.sleep(cost + (config.seconds_per_load if external else 0.0))
            ids = fake.output(prompt, body["max_tokens"], external)
            usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
            if config.prompt_details:
                usage["prompt_tokens_details"] = {"cached_tokens": local + external}
            with fake.lock:
                fake.meters.ttfts.append(time.perf_counter() - begun)
            time.sleep(config.deliver_late_seconds)
            try:
                if body.get("stream"):
                    broken = bool(config.break_every) and number % config.break_every == 0
                    self._stream(ids, usage, broken=broken)
                else:
                    self._json(200, {"choices": [{"text": _text(ids)}], "usage": usage})
            finally:
                with fake.lock:
                    fake.running -= 1

        def _stream(self, ids: list[int], usage: dict[str, Any], *, broken: bool) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for position, token in enumerate(ids):
                if broken and position == len(ids) // 2:
                    self.close_connection = True
                    return
                choice: dict[str, Any] = {"index": 0, "text": _text([token]), "finish_reason": None}
                if fake.config.token_ids:
                    choice["token_ids"] = [token]
                self._event({"choices": [choice], "usage": None})
                time.sleep(fake.config.seconds_per_output_token)
            self._event({"choices": [], "usage": usage})
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
            if fake.config.keep_open:
                self.close_connection = False

        def _event(self, event: object) -> None:
            self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    return Handler


def _tokenize(text: str) -> list[int]:
    return [ord(letter) % 200 + 5 for letter in text]


def _text(ids: list[int]) -> str:
    return "".join(chr(token + 33) for token in ids)
