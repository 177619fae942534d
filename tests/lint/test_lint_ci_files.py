"""The composite action and the pre-commit hook: legal YAML, and the action's own script run for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def action() -> dict[str, Any]:
    """Read the action."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / ".github/actions/lint/action.yml").read_text(encoding="utf-8"))
    return loaded


def run_lint_step(folder: Path, paths: str, args: str = "") -> tuple[int, dict[str, str], str]:
    """Run the step's script as the runner does: exit code, outputs, standard output."""
    step = next(s for s in action()["runs"]["steps"] if s.get("id") == "lint")
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    launcher = bin_folder / "kvoffload"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pytest_kvoffload "$@"\n')
    launcher.chmod(0o755)
    (bin_folder / "python").symlink_to(sys.executable)
    output = folder / "output"
    env = {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_OUTPUT": str(output),
        "RUNNER_TEMP": str(folder),
        "LINT_PATHS": paths,
        "LINT_ARGS": args,
        "VLLM_VERSION": "",
        "SARIF_FILE": str(folder / "lint.sarif"),
    }
    command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    pairs = dict(line.split("=", 1) for line in output.read_text().splitlines()) if output.exists() else {}
    return done.returncode, pairs, done.stdout + done.stderr


def test_the_action_counts_errors_and_writes_sarif(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text("vllm serve m --kv-offloading-backend native\n")
    code, outputs, out = run_lint_step(tmp_path, "serve.sh", "--severity note")
    assert code == 0, out
    assert outputs == {"code": "1", "errors": "1"}
    assert "::error file=serve.sh,line=1" in out
    assert json.loads((tmp_path / "lint.sarif").read_text())["runs"][0]["results"]


def test_the_action_fails_on_bad_arguments(tmp_path: Path) -> None:
    code, outputs, out = run_lint_step(tmp_path, "nowhere.sh")
    assert code == 2, out
    assert outputs == {"code": "2"}


def test_inputs_reach_scripts_only_through_the_environment() -> None:
    for step in action()["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), "an expression in a script is an injection"


@pytest.mark.parametrize("key", ["id", "name", "description", "entry", "language", "types_or"])
def test_the_hook_is_complete(key: str) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook[key]
    assert hook["entry"] == "kvoffload lint"
