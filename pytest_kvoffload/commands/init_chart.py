"""What vllm production-stack's chart adds to a launch beyond what the linter reads: seen in its deployment template.

Read from ``templates/deployment-vllm-multi.yaml`` (charts 0.1.9 and later) and from the chart's own unit tests. The
variables that name a place in the pod or in the cluster (``HF_HOME``, ``POD_IP``, a cache server's service) have no
meaning where a test runs: they are named, not carried over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_kvoffload.errors import UsageError, did_you_mean
from pytest_kvoffload.lint.model import Launch

_POD_ONLY = {
    "PROMETHEUS_MULTIPROC_DIR": "a directory of the pod; kind 'lmcache_inprocess' makes a fresh one, for others set it",
    "LMCACHE_REMOTE_URL": "a service of the cluster",
    "LMCACHE_CONTROLLER_PULL_URL": "a service of the cluster",
    "LMCACHE_CONTROLLER_REPLY_URL": "a service of the cluster",
}
_SWITCHES = ("LMCACHE_ENABLE_CONTROLLER", "LMCACHE_ENABLE_NIXL")
POD_DIRECTORY = "/tmp"
"""The chart's own value of PROMETHEUS_MULTIPROC_DIR; another one is the user's and is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartParts:
    """What the chart adds to the flags and variables that the linter's reader derives."""

    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()


def choose_spec(path: Path, launches: Sequence[Launch], name: str | None) -> Launch:
    """Return the launch of one model spec; several need a name.

    Raises:
        UsageError: no such spec, or several and no name.
    """
    specs = {_name(launch): launch for launch in launches if _enabled(launch)}
    known = ", ".join(str(key) for key in specs)
    if name is None:
        if len(specs) == 1:
            return next(iter(specs.values()))
        raise UsageError(f"--from {path}: found {len(specs)} model specs ({known or 'none'}); name one with --spec")
    if name not in specs:
        raise UsageError(
            f"--from {path}: no model spec {name!r}{did_you_mean(name, specs)}; there are {known or 'none'}"
        )
    return specs[name]


def is_model_spec(launch: Launch) -> bool:
    """Whether a launch is what the chart makes of ``servingEngineSpec.modelSpec[]``."""
    return launch.source == "helm" and launch.config("helm-model-spec") is not None


def chart_parts(launch: Launch) -> ChartParts:
    """Return the chart's further flags and variables, empty for any other launch."""
    config = launch.config("helm-model-spec")
    if launch.source != "helm" or config is None:
        return ChartParts()
    spec: dict[str, Any] = config.node.plain()
    lmcache = spec.get("lmcacheConfig") or {}
    args: list[str] = []
    if spec.get("enableLoRA"):
        args.append("--enable-lora")
    if spec.get("enableTool"):
        args.append("--enable-auto-tool-choice")
    if spec.get("toolCallParser"):
        args += ["--tool-call-parser", str(spec["toolCallParser"])]
    vllm = spec.get("vllmConfig")
    if isinstance(vllm, dict) and vllm and "enablePrefixCaching" not in vllm:
        # The template asks for the value, not for the key: without it prefix caching is switched off.
        args.append("--no-enable-prefix-caching")
    env: list[tuple[str, str]] = []
    if lmcache.get("enabled"):
        env += [("LMCACHE_USE_EXPERIMENTAL", "True"), ("VLLM_RPC_TIMEOUT", "1000000")]
    if "cudaVisibleDevices" in lmcache:
        env.append(("CUDA_VISIBLE_DEVICES", str(lmcache["cudaVisibleDevices"])))
    left = ["HF_HOME, POD_IP: places of the pod"]
    if "instanceId" not in lmcache and lmcache.get("enabled"):
        left.append("LMCACHE_LMCACHE_INSTANCE_ID: the pod's name")
    if spec.get("chatTemplate"):
        left.append("--chat-template: a file of the pod")
    if _number(spec.get("replicaCount")) > 1:
        left.append(
            f"replicaCount {spec['replicaCount']}: one replica is booted; each has its own tier, so attach to the "
            "router to measure them together"
        )
    return ChartParts(args=tuple(args), env=tuple(env), left_out=tuple(left))


def chart_word(name: str, value: str) -> str:
    """Return a variable's value as the template writes it: a switch as ``True`` or ``False``."""
    return value.capitalize() if name in _SWITCHES and value in ("true", "false") else value


def pod_only(name: str, value: str) -> str | None:
    """Say why a variable of the chart is not carried over, ``None`` when it is."""
    if name == "PROMETHEUS_MULTIPROC_DIR" and value != POD_DIRECTORY:
        return None
    return _POD_ONLY.get(name)


def _name(launch: Launch) -> str:
    config = launch.config("helm-model-spec")
    plain = config.node.plain() if config is not None else {}
    return str(plain.get("name") or f"line {launch.location.line}")


def _enabled(launch: Launch) -> bool:
    config = launch.config("helm-model-spec")
    return config is None or config.node.plain().get("enabled") is not False


def _number(value: Any) -> int:
    return value if isinstance(value, int) else int(value) if isinstance(value, str) and value.isdigit() else 1
