"""What makes two measurements comparable: the machine and the software they were taken with."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

from pytest_kvoffload._version import __version__
from pytest_kvoffload.records import ServerInfo


def environment_of(info: ServerInfo) -> dict[str, str]:
    """Describe plugin, Python, platform, CPU, memory and GPUs of the machine that measures."""
    import psutil

    facts = {
        "plugin": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cpus": str(psutil.cpu_count(logical=True) or "unknown"),
        "memory_bytes": str(psutil.virtual_memory().total),
        "gpu": _gpus(),
        "engine": info.engine_kind,
    }
    if info.vllm_version:
        facts["vllm"] = info.vllm_version
    return facts


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpus() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "none"
    try:
        done = subprocess.run(
            [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return "; ".join(line.strip() for line in done.stdout.splitlines() if line.strip()) or "none"
