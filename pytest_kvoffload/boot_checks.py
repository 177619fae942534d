"""What is checked before a server boots: its configuration is linted, the machine is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_kvoffload.errors import EngineError
from pytest_kvoffload.session import Arm

__all__ = ["before_boot"]


def before_boot(
    *, insist: bool = False, warn: Callable[[str], None], lint: str = "error", settings: Mapping[str, Any] | None = None
) -> Callable[[Arm], None]:
    """Return the check that a :class:`RunSession` makes before it boots an arm.

    Args:
        insist: boot although the machine cannot hold it.
        warn: receives what is worth knowing and no reason to refuse.
        lint: ``off``, ``warn`` or ``error``: what a lint error does.
        settings: the section ``[lint]`` of the configuration (``ignore``).
    """

    def check(arm: Arm) -> None:
        if arm.engine.kind == "attach":
            return
        _look_at_machine(arm, insist=insist, warn=warn)

    return check


def _look_at_machine(arm: Arm, *, insist: bool, warn: Callable[[str], None]) -> None:
    """Refuse a boot that cannot succeed.

    Packages are not looked into here: that costs seconds a boot, and a boot that fails on them is explained anyway
    (``kvoffload doctor`` looks).
    """
    from pytest_kvoffload.engine.interpreter import inspect_interpreter
    from pytest_kvoffload.engine.preflight import preflight, refuse

    cpu_platform, version = True, arm.engine.vllm_version
    if arm.engine.kind == "local":
        try:
            interpreter = inspect_interpreter(arm.engine.python, env={**arm.engine.env, **arm.connector.env})
        except EngineError:
            return  # the boot itself says what is wrong with the interpreter
        cpu_platform, version = interpreter.cpu_platform, interpreter.vllm_version
    path = Path(arm.model.path) if arm.model.path and Path(arm.model.path).is_dir() else None
    report = preflight(
        engine=arm.engine,
        connector=arm.connector,
        model_path=path,
        server_version=version,
        cpu_platform=cpu_platform,
        packages="none",
    )
    for failed in refuse(report, insist=insist):
        warn(f"{arm.connector.name}: booted although {failed.name}: {failed.saw}")
