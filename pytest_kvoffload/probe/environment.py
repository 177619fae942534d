"""What makes two measurements comparable: the machine and the software they were taken with."""

from __future__ import annotations

import platform

from pytest_kvoffload._version import __version__
from pytest_kvoffload.machine import machine_facts
from pytest_kvoffload.records import ServerInfo


def environment_of(info: ServerInfo) -> dict[str, str]:
    """Describe plugin, Python, platform, CPU, memory and GPUs of the machine that measures."""
    facts = {
        "plugin": __version__,
        "python": platform.python_version(),
        **machine_facts(),
        "engine": info.engine_kind,
    }
    if info.vllm_version:
        facts["vllm"] = info.vllm_version
    return facts
