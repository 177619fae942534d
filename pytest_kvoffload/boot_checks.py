"""What is checked before a server boots: its configuration is linted, the machine is looked at."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_kvoffload.engine.masking import mask_text
from pytest_kvoffload.errors import ConfigError, EngineError, LintError
from pytest_kvoffload.session import Arm

if TYPE_CHECKING:
    from pytest_kvoffload.lint.model import Diagnostic

__all__ = ["before_boot"]


def before_boot(
    *,
    insist: bool = False,
    warn: Callable[[str], None],
    lint: str = "error",
    settings: Mapping[str, Any] | None = None,
    record: Path | None = None,
) -> Callable[[Arm], None]:
    """Return the check that a :class:`RunSession` makes before it boots an arm.

    Args:
        insist: boot although the machine cannot hold it.
        warn: receives what is worth knowing and no reason to refuse.
        lint: ``off``, ``warn`` or ``error``: what a lint error does.
        settings: the section ``[lint]`` of the configuration (``ignore``).
        record: directory of the run; what was found is written to ``checks/<key>.json`` in it, for the report.
    """

    def check(arm: Arm) -> None:
        if arm.engine.kind == "attach":
            return
        seen: list[dict[str, str]] = []
        try:
            if lint != "off":
                _lint(arm, level=lint, ignored=_ignored(settings or {}), warn=warn, seen=seen)
            _look_at_machine(arm, insist=insist, warn=warn, seen=seen)
        finally:
            if record is not None:
                _write(record / "checks" / f"{arm.key}.json", seen)

    return check


def _ignored(settings: Mapping[str, Any]) -> frozenset[str]:
    """Return the codes that ``[lint] ignore`` names.

    Raises:
        UsageError: not a list of words, an unknown key, an unknown rule.
    """
    from pytest_kvoffload.lint.registry import resolve

    for key in settings:
        if key != "ignore":
            raise ConfigError(section="lint", key=key, got="an unknown key", expected="ignore")
    words = settings.get("ignore", [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(section="lint", key="ignore", got=repr(words), expected="a list of rule codes or names")
    return resolve(words, "[lint] ignore")


def _write(path: Path, seen: list[dict[str, str]]) -> None:
    """Write the file whole or not at all: workers of one run may check the same arm."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(seen, indent=1), encoding="utf-8")
    partial.replace(path)


def _line(arm: Arm, kind: str, name: str, outcome: str, text: str) -> dict[str, str]:
    return {"arm": arm.name, "kind": kind, "name": name, "outcome": outcome, "text": mask_text(text)}


def _lint(
    arm: Arm, *, level: str, ignored: frozenset[str], warn: Callable[[str], None], seen: list[dict[str, str]]
) -> None:
    """Lint what is about to boot.

    Raises:
        LintError: an error was found and the level is ``error``.
    """
    from pytest_kvoffload.engine.connectors import connector_argv
    from pytest_kvoffload.lint import lint_config

    version = arm.engine.vllm_version
    parts = connector_argv(
        arm.connector, engine=arm.engine, server_version=version, cpu_platform=arm.engine.kind == "cpu"
    )
    found = [
        finding
        for finding in lint_config(
            arm.connector,
            arm.engine,
            (*arm.engine.args, *parts.args),
            {**arm.engine.env, **arm.connector.env},
            version,
        )
        if finding.code not in ignored
    ]
    seen += [_line(arm, "lint", f"{f.code} {f.name}", f.severity, f"{f.message}; {f.remedy}") for f in found]
    errors = [f for f in found if f.severity == "error"]
    for finding in found:
        if finding.severity == "warning" or (finding.severity == "error" and level == "warn"):
            warn(f"[connectors.{arm.connector.name}] {_text(finding)}")
    if errors and level == "error":
        lines = [f"the configuration of [connectors.{arm.connector.name}] was refused before the boot:"]
        lines += [f"  {_text(finding)}" for finding in errors]
        lines.append("  to boot all the same: --kvoffload-lint=warn, or list the code in [lint] ignore")
        raise LintError("\n".join(lines))


def _text(finding: Diagnostic) -> str:
    return f"{finding.message} [{finding.code} {finding.name}]; {finding.remedy}"


def _look_at_machine(arm: Arm, *, insist: bool, warn: Callable[[str], None], seen: list[dict[str, str]]) -> None:
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
    for made in report.checks:
        said = "; ".join(filter(None, (made.saw, made.needed and f"needed: {made.needed}", made.remedy)))
        seen.append(_line(arm, "preflight", made.name, made.status, said))
    for failed in refuse(report, insist=insist):
        warn(f"{arm.connector.name}: booted although {failed.name}: {failed.saw}")
