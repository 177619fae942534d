"""A launch command, read by the linter's readers, as the sections of a ``kvoffload.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_kvoffload.commands.init_chart import chart_parts, chart_word, choose_spec, is_model_spec, pod_only
from pytest_kvoffload.engine.masking import has_secret, is_secret_name
from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.lint.model import Flag, Launch, Node, Value
from pytest_kvoffload.lint.sources import read

OURS = ("--host", "--port", "--model", "--model-tag")
"""Arguments that a test sets itself: the address, and the model, which has a section of its own."""
MANY = ("--lora-modules", "--middleware")
"""Arguments with several values, of which the readers keep one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What a launch says, sorted into our sections."""

    model: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    connector: Mapping[str, Any] | None
    """The table of the connector under test; ``None`` when the launch has no tier."""
    connector_env: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    """What was not carried over and why, one sentence each."""


def carry(path: Path, *, spec: str | None = None) -> Carried:
    """Read the one vLLM launch of a file, or that of one model spec of production-stack's Helm values.

    Raises:
        UsageError: no launch or several, or a part of it is only known when it runs.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"--from {path}: cannot be read: {error.strerror or error}") from error
    document = read(str(path), text)
    launches = [launch for launch in document.launches if launch.product == "vllm"]
    if launches and all(is_model_spec(launch) for launch in launches):
        launches = [choose_spec(path, launches, spec)]
    elif spec is not None:
        raise UsageError(f"--spec {spec}: {path} has no model specs of production-stack's chart")
    if len(launches) != 1:
        lines = ", ".join(str(launch.location.line) for launch in launches)
        seen = f"{len(launches)} launches (lines {lines})" if launches else "no launch of vLLM"
        raise UsageError(f"--from {path}: found {seen}; expected a file with one 'vllm serve' command")
    launch = launches[0]
    unresolved = [f"line {note.location.line}: {note.reason}" for note in document.unresolved]
    if unresolved or not launch.complete:
        unresolved = unresolved or [f"line {launch.location.line}: a part of the command line"]
        raise _unresolved(path, unresolved)
    return _carry(path, launch)


def _carry(path: Path, launch: Launch) -> Carried:
    if launch.model is None:
        raise UsageError(f"--from {path}: line {launch.location.line}: the launch names no model")
    chart = chart_parts(launch)
    left_out = list(chart.left_out)
    unknown: list[str] = []
    model = _text(launch.model, "the model", unknown)
    args: list[str] = list(chart.args)
    for flag in launch.flags:
        name = flag.name.replace("_", "-") if flag.name.startswith("--") else flag.name
        if name in OURS or name.startswith(("--kv-transfer-config", "--kv-offloading-")):
            if name in ("--host", "--port"):
                left_out.append(f"{name}: a test binds the local host and a free port")
            continue
        if is_secret_name(name) or (flag.value is not None and has_secret(flag.value.text or "")):
            left_out.append(f"{name}: a secret does not belong into a file under test")
        elif name in MANY:
            left_out.append(f"{name}: it has several values; add it to [engine] args by hand")
        else:
            args += _words(flag, unknown)
    connector = _connector(path, launch, unknown)
    if connector is not None and "kv_transfer_config" in connector:
        kept = without_secrets(connector["kv_transfer_config"], left_out)
        connector = {**connector, "kv_transfer_config": kept}
    env: dict[str, str] = {}
    tier_env: dict[str, str] = {}
    for name, value in chart.env:
        (tier_env if name.startswith("LMCACHE_") and connector is not None else env)[name] = value
    for variable in launch.env:
        if not variable.reaches:
            left_out.append(f"{variable.name}: it is set in the shell and never exported, the server does not see it")
        elif variable.value.certainty == "unresolved" or variable.value.text is None:
            left_out.append(f"{variable.name}: its value is only known when the file runs; set it where the tests run")
        elif is_secret_name(variable.name) or has_secret(variable.value.text):
            left_out.append(f"{variable.name}: a secret does not belong into a file; set it where the tests run")
        elif is_model_spec(launch) and (why := pod_only(variable.name, variable.value.text)) is not None:
            left_out.append(f"{variable.name}: {why}")
        else:
            mine = tier_env if variable.name.startswith("LMCACHE_") and connector is not None else env
            text = variable.value.text
            mine[variable.name] = chart_word(variable.name, text) if is_model_spec(launch) else text
    if unknown:
        raise _unresolved(path, unknown)
    return Carried(
        model=model,
        args=tuple(args),
        env=env,
        connector=connector,
        connector_env=tier_env,
        left_out=tuple(left_out),
    )


def without_secrets(value: Any, left_out: list[str], *, name: str = "") -> Any:
    """Return a configuration without the keys that hold secrets; ``left_out`` receives a sentence on each."""
    if isinstance(value, Mapping):
        kept = {}
        for key, item in value.items():
            if isinstance(item, str) and item and (is_secret_name(key) or has_secret(item)):
                left_out.append(
                    f"{key} of {name or 'the transfer configuration'}: a secret does not belong into a file; an object "
                    "store's SDK finds its keys in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
                )
            else:
                kept[key] = without_secrets(item, left_out, name=key)
        return kept
    if isinstance(value, list):
        return [without_secrets(item, left_out, name=name) for item in value]
    return value


def _connector(path: Path, launch: Launch, unknown: list[str]) -> dict[str, Any] | None:
    """Return the connector's table, ``None`` for a launch without a tier."""
    size, backend = launch.flag("--kv-offloading-size"), launch.flag("--kv-offloading-backend")
    transfers = [config for config in launch.configs if config.kind in ("kv-transfer-config", "kv-transfer-dotted")]
    if len(transfers) > 1 or (transfers and size is not None):
        raise UsageError(
            f"--from {path}: line {launch.location.line}: the tier is configured twice; keep one of "
            "--kv-transfer-config, its dotted form and --kv-offloading-size"
        )
    if transfers:
        config = transfers[0]
        if config.error is not None:
            raise UsageError(f"--from {path}: line {config.location.line}: --kv-transfer-config: {config.error}")
        _check_node(config.node, "--kv-transfer-config", unknown)
        return {"kind": "raw", "kv_transfer_config": config.node.plain()}
    if size is None:
        return None
    if backend is not None and backend.value is not None and backend.value.text != "native":
        words = [word for flag in (size, backend) for word in _words(flag, unknown)]
        return {"kind": "raw", "args": words}
    text = _text(size.value, "the value of --kv-offloading-size", unknown) if size.value is not None else ""
    if unknown:
        return {"kind": "native"}
    try:
        return {"kind": "native", "size_gib": float(text)}
    except ValueError:
        raise UsageError(
            f"--from {path}: line {size.location.line}: --kv-offloading-size: got {text!r}; expected a number of GiB"
        ) from None


def _words(flag: Flag, unknown: list[str]) -> list[str]:
    if flag.value is None:
        return [flag.name]
    text = _text(flag.value, f"the value of {flag.name}", unknown)
    return [f"{flag.name}={text}"] if flag.joined else [flag.name, text]


def _text(value: Value, what: str, unknown: list[str]) -> str:
    if value.certainty == "unresolved" or value.text is None:
        unknown.append(f"line {value.location.line}: {what}")
        return ""
    return value.text


def _check_node(node: Node, what: str, unknown: list[str]) -> None:
    if node.kind == "unresolved":
        unknown.append(f"line {node.location.line}: a part of {what}")
    for item in node.items:
        _check_node(item, what, unknown)
    for member in node.members:
        _check_node(member.node, f"{what} ({member.key})", unknown)


def _unresolved(path: Path, parts: list[str]) -> UsageError:
    listed = "\n".join(f"  {part}" for part in parts)
    return UsageError(
        f"--from {path}: this is only known when the file runs:\n{listed}\nwrite the values out in a copy and give that"
    )
