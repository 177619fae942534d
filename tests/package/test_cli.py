"""The dispatcher: help, version, unknown words, errors of ours as one message."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_kvoffload import cli
from pytest_kvoffload.errors import ExitCode


def test_help_lists_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert f"\n  {name} " in out
    for code in ExitCode:
        assert f"{code.value}  {code.name.lower()}" in out


def test_no_words_is_a_usage_error_with_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == ExitCode.USAGE
    assert "usage: kvoffload COMMAND" in capsys.readouterr().out


def test_an_unknown_command_is_named_with_the_closest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demmo"]) == ExitCode.USAGE
    assert capsys.readouterr().err == "kvoffload: unknown command 'demmo' (did you mean 'demo'?)\n"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_a_help_that_imports_no_engine(name: str) -> None:
    code = (
        "import sys\nfrom pytest_kvoffload.cli import main\n"
        f"try: main([{name!r}, '--help'])\nexcept SystemExit as end: assert end.code == 0\n"
        "heavy = {'requests', 'prometheus_client', 'numpy', 'scipy', 'plotly', 'vllm'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: kvoffload {name}")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kvoffload 0.")
