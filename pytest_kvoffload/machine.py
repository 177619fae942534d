"""What this machine is: the part of a measurement's environment that names a runner."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path


def machine_facts() -> dict[str, str]:
    """Describe platform, CPU, memory and GPUs of the machine that measures."""
    import psutil

    return {
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cpus": str(psutil.cpu_count(logical=True) or "unknown"),
        "memory_bytes": str(psutil.virtual_memory().total),
        "gpu": _gpus(),
    }


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
