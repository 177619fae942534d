"""``kvoffload size``: the tier that a workload needs, from the model's own configuration."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pytest_kvoffload.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from pytest_kvoffload.sizing import Device, ModelKV, SizeResult

EPILOG = """\
sizes need a unit: 28GiB is 28 x 2**30 bytes, 80GB is 80 x 10**9; a bare number is refused.

examples:
  kvoffload size --model meta-llama/Llama-3.1-8B --context 8192 --sessions 200 --device-kv 28GiB
  kvoffload size --model ./config.json --context 32768 --sessions 50 --gpu-memory 80GB --weights 40GB --tp 2
  kvoffload size --layers 32 --kv-heads 8 --head-dim 128 --dtype float16 --context 8192 --sessions 200 --device-kv 28GiB
  kvoffload size --model DIR --table 8192,32768 x 50,100,200 --device-kv 28GiB
"""


def build_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    model = parser.add_argument_group("model")
    model.add_argument("--model", metavar="PATH|NAME", help="config.json, its folder, or a name in the local hub cache")
    model.add_argument("--revision", default="main", help="revision of a hub name (default: main)")
    model.add_argument("--layers", type=int, help="explicit numbers instead of --model: layers with a cache")
    model.add_argument("--kv-heads", type=int, help="explicit: KV heads of a layer, over all ranks")
    model.add_argument("--head-dim", type=int, help="explicit: size of one head")
    model.add_argument(
        "--dtype", help="as vllm's --dtype (default: the configuration's, bfloat16 for explicit numbers)"
    )
    model.add_argument(
        "--assume-standard", action="store_true", help="size an unknown architecture as ordinary attention, and say so"
    )
    work = parser.add_argument_group("workload")
    work.add_argument("--context", type=int, metavar="TOKENS", help="tokens of a session when it is revisited")
    work.add_argument("--sessions", type=int, metavar="N", help="sessions to keep warm")
    work.add_argument("--headroom", default="15%", help="on top of the difference (default: 15%%)")
    work.add_argument(
        "--chunk", type=int, metavar="TOKENS", help="tokens of one chunk of the tier (default: the block)"
    )
    work.add_argument("--table", nargs="+", metavar="CONTEXTS x SESSIONS", help="such as: --table 8192,32768 x 50,100")
    device = parser.add_argument_group("device (one of three)")
    device.add_argument("--device-kv", metavar="SIZE", help="KV memory of one GPU, as the server's log says it")
    device.add_argument("--gpu-memory", metavar="SIZE", help="memory of one GPU, with --weights")
    device.add_argument("--weights", metavar="SIZE", help="weights of the whole model")
    device.add_argument("--utilisation", "--utilization", default="0.92", help="gpu_memory_utilization (default: 0.92)")
    device.add_argument("--overhead", default="0GiB", metavar="SIZE", help="activations and CUDA graphs of one GPU")
    device.add_argument("--num-gpu-blocks", type=int, metavar="N", help="the server's own num_gpu_blocks")
    server = parser.add_argument_group("server")
    server.add_argument("--tp", type=int, default=1, help="tensor parallel size")
    server.add_argument("--pp", type=int, default=1, help="pipeline parallel size")
    server.add_argument("--dp", type=int, default=1, help="data parallel replicas, each with a tier of its own")
    server.add_argument("--kv-cache-dtype", default="auto", help="as vllm's flag (default: auto)")
    server.add_argument("--mamba-ssm-cache-dtype", default="auto", help="as vllm's flag (default: auto)")
    server.add_argument("--block-size", type=int, metavar="B", help="as vllm's flag (default: the backend's)")
    server.add_argument("--max-model-len", type=int, metavar="N", help="as vllm's flag (default: the configuration's)")
    server.add_argument("--max-num-batched-tokens", type=int, default=8192, help="as vllm's flag (default: 8192)")
    server.add_argument("--no-prefix-caching", action="store_true", help="as vllm's --no-enable-prefix-caching")
    server.add_argument("--no-hybrid-manager", action="store_true", help="as --disable-hybrid-kv-cache-manager")
    server.add_argument("--vllm-version", help="rules of that vLLM version (default: 0.32.0)")
    server.add_argument("--platform", default="cuda", choices=("cuda", "rocm", "xpu", "cpu"), help="default: cuda")
    output = parser.add_argument_group("output")
    output.add_argument("--explain", action="store_true", help="show every step, the layers and the groups")
    output.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Size it."""
    kv = _kv(args)
    device = _device(args, kv)
    if args.table:
        contexts, sessions = _table_axes(args.table)
        _print_table(args, kv, device, contexts, sessions)
        return ExitCode.OK
    if args.context is None:
        raise UsageError("--context: missing; say how many tokens a session has")
    if args.sessions is None:
        if device is not None:
            raise UsageError("--sessions: missing; a tier needs sessions and what the device holds")
        _print_model(args, kv)
        return ExitCode.OK
    from pytest_kvoffload.sizing import Workload, size

    work = Workload(
        context=args.context, sessions=args.sessions, dp=args.dp, chunk_tokens=args.chunk, headroom=_headroom(args)
    )
    result = size(kv, work, device or _no_device(), platform=args.platform)
    if args.json:
        print(json.dumps(result.as_dict(), indent=2))
    else:
        print("\n".join(_text(args, result)))
    return ExitCode.OK


def _kv(args: argparse.Namespace) -> ModelKV:
    from pytest_kvoffload.sizing import Serving, explicit_kv, locate_config, model_kv, read_config
    from pytest_kvoffload.sizing.serving import DEFAULT_VLLM_VERSION

    explicit = {"--layers": args.layers, "--kv-heads": args.kv_heads, "--head-dim": args.head_dim}
    given = [name for name, value in explicit.items() if value is not None]
    serving = Serving(
        tp=args.tp,
        pp=args.pp,
        kv_cache_dtype=args.kv_cache_dtype,
        block_size=args.block_size,
        dtype=args.dtype if args.model else None,
        mamba_ssm_cache_dtype=args.mamba_ssm_cache_dtype,
        max_num_batched_tokens=args.max_num_batched_tokens,
        prefix_caching=False if args.no_prefix_caching else None,
        hybrid_manager=not args.no_hybrid_manager,
        vllm_version=args.vllm_version or DEFAULT_VLLM_VERSION,
    )
    if args.model and given:
        raise UsageError(f"--model and explicit numbers ({', '.join(given)}) exclude each other")
    if args.model:
        path = locate_config(args.model, revision=args.revision)
        config = read_config(path)
        return model_kv(
            config,
            serving=serving,
            max_model_len=args.max_model_len,
            source=str(path),
            assume_standard=args.assume_standard,
        )
    missing = [name for name, value in explicit.items() if value is None]
    if missing:
        raise UsageError(f"{', '.join(missing)}: missing; give --model, or all of --layers, --kv-heads and --head-dim")
    return explicit_kv(
        layers=args.layers,
        kv_heads=args.kv_heads,
        head_dim=args.head_dim,
        dtype=args.dtype or "bfloat16",
        serving=serving,
        max_model_len=args.max_model_len,
    )


def _no_device() -> Device:
    from pytest_kvoffload.sizing import Device

    return Device(
        kv_bytes_per_rank=0,
        how="not said (--device-kv, --gpu-memory or --num-gpu-blocks), so the tier is to hold the whole warm set",
    )


def _device(args: argparse.Namespace, kv: ModelKV) -> Device | None:
    from pytest_kvoffload.sizing import Device, device_from_blocks, device_from_gpu, parse_fraction, parse_size
    from pytest_kvoffload.sizing.units import show_bytes

    ways = {
        "--device-kv": args.device_kv,
        "--gpu-memory": args.gpu_memory,
        "--num-gpu-blocks": args.num_gpu_blocks,
    }
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other; give one")
    if args.device_kv is not None:
        held = parse_size(args.device_kv, what="--device-kv")
        return Device(kv_bytes_per_rank=held, how=f"{show_bytes(held)} per GPU, as given")
    if args.num_gpu_blocks is not None:
        return device_from_blocks(kv, args.num_gpu_blocks)
    if args.gpu_memory is None:
        return None
    if args.weights is None:
        raise UsageError("--weights: missing; --gpu-memory needs the size of the model's weights")
    utilisation = parse_fraction(args.utilisation, what="--utilisation", low=0.0, high=1.0)
    return device_from_gpu(
        gpu_memory=parse_size(args.gpu_memory, what="--gpu-memory"),
        weights=parse_size(args.weights, what="--weights"),
        utilisation=Fraction(str(utilisation)),
        overhead=parse_size(args.overhead, what="--overhead"),
        ranks=kv.world_size,
    )


def _headroom(args: argparse.Namespace) -> Fraction:
    from pytest_kvoffload.sizing import parse_fraction

    return Fraction(str(parse_fraction(args.headroom, what="--headroom")))


def _table_axes(words: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    text = " ".join(words)
    parts = text.lower().split("x")
    if len(parts) != 2:
        raise UsageError(f"--table: got {text!r}; expected CONTEXTS x SESSIONS, such as 8192,32768 x 50,100")
    axes = []
    for part, name in zip(parts, ("contexts", "sessions"), strict=True):
        try:
            numbers = tuple(int(item) for item in part.replace(" ", ",").split(",") if item)
        except ValueError:
            raise UsageError(f"--table: {name} {part.strip()!r} are not whole numbers") from None
        if not numbers or min(numbers) < 1:
            raise UsageError(f"--table: {name} {part.strip()!r}: expected whole numbers of 1 or more")
        axes.append(numbers)
    return axes[0], axes[1]


def _print_table(
    args: argparse.Namespace, kv: ModelKV, device: Device | None, contexts: tuple[int, ...], sessions: tuple[int, ...]
) -> None:
    from pytest_kvoffload.sizing.tier import table
    from pytest_kvoffload.sizing.units import GIB

    device = device or _no_device()
    base: dict[str, Any] = {"dp": args.dp, "chunk_tokens": args.chunk, "headroom": _headroom(args)}
    rows = table(kv, device, contexts, sessions, base=base)
    if args.json:
        body = {
            "schema_version": 1,
            "contexts": list(contexts),
            "sessions": list(sessions),
            "tier_bytes": rows,
            "device_kv_bytes_per_rank": device.kv_bytes_per_rank,
        }
        print(json.dumps(body, indent=2))
        return
    print(f"{kv.architecture}: tier in GiB, all ranks of one replica (0: no tier needed)")
    print("context".rjust(10) + "".join(f"{count:,} sessions".rjust(16) for count in sessions))
    for context, row in zip(contexts, rows, strict=True):
        print(f"{context:,}".rjust(10) + "".join(f"{value / GIB:,.1f}".rjust(16) for value in row))


def _print_model(args: argparse.Namespace, kv: ModelKV) -> None:
    if args.json:
        print(json.dumps({"schema_version": 1, **kv.as_dict(args.context)}, indent=2))
        return
    print("\n".join(_model_lines(args, kv)))


def _model_lines(args: argparse.Namespace, kv: ModelKV) -> list[str]:
    from pytest_kvoffload.sizing.units import show_bytes

    serving = kv.serving
    lines = [
        f"{kv.architecture} on vLLM {serving.vllm_version}, tp {serving.tp}, pp {serving.pp}, "
        f"KV {kv.cache_dtype} ({kv.model_dtype}), block {kv.block_size} tokens; bytes per rank:",
        f"  per token            {kv.kv_bytes_per_token:,} B",
    ]
    if kv.window_bytes_per_token:
        lines.append(f"  per token in reach   {kv.window_bytes_per_token:,} B (windows and chunks)")
    if kv.state_bytes_per_sequence:
        lines.append(
            f"  state per sequence   {kv.state_bytes_per_sequence:,} B "
            f"({kv.state_bytes_per_sequence_padded:,} B as padded)"
        )
    request = kv.bytes_for_one_request(args.context)
    lines += [
        f"  per block id         {kv.padded_bytes_per_block:,} B",
        f"  one request of {args.context:,} tokens: {request:,} B ({show_bytes(request)}) of the device's pool at most",
    ]
    if args.explain:
        lines += _explain(kv)
    return lines + [f"note: {note}" for note in kv.notes]


def _explain(kv: ModelKV) -> list[str]:
    data = kv.as_dict()
    lines = [f"rule: {kv.rule_source}", "layers:"]
    for layer in data["per_layer"]:
        rest = ", ".join(f"{key} {value}" for key, value in layer.items() if key not in {"type", "layers"})
        lines.append(f"  {layer['layers']} x {layer['type']}: {rest}")
    lines.append("groups (one block table each; a block id costs the largest):")
    for group in data["groups"]:
        lines.append(
            f"  {group['type']}: {group['layers']} layers, block {group['block_size']}, page "
            f"{group['page_size_bytes']:,} B"
        )
    return lines


def _text(args: argparse.Namespace, result: SizeResult) -> list[str]:
    from pytest_kvoffload.sizing.units import show_bytes

    lines = _model_lines(args, result.kv)
    notes = [line for line in lines if line.startswith("note: ")] + [f"note: {note}" for note in result.notes]
    lines = [line for line in lines if not line.startswith("note: ")]
    lines.append("")
    if args.explain:
        lines += [*result.steps, ""]
    else:
        lines += [result.steps[2], result.steps[3]]
    if not result.needed:
        lines.append("no tier needed: the device holds the whole warm set")
        return [*lines, *notes]
    headroom = float(result.workload.headroom)
    lines.append(
        f"tier: {show_bytes(result.tier_bytes)} with {headroom:.0%} headroom; the settings say "
        f"{show_bytes(result.recommended_bytes)} (whole GiB)"
    )
    lines += ["", "settings (one of them):"]
    for setting in result.settings:
        lines += [f"  {setting.line}", f"      {setting.unit}"]
    host = result.host
    if host is not None:
        memlock = f"ulimit -l {host.memlock_bytes // 1024 + 1} (KiB) or unlimited"
        lines += [
            "",
            "the host needs (vLLM's native tier):",
            f"  /dev/shm      {show_bytes(host.shm_bytes)}"
            if host.shm_bytes
            else "  /dev/shm      no share of the tier",
            f"  memory limit  {show_bytes(host.memory_bytes)}",
            f"  memlock       {memlock}",
            *(f"      {note}" for note in host.notes),
        ]
    return [*lines, *([""] if notes else []), *notes]
