"""The demo's judgement and its options, without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_kvoffload import cli
from pytest_kvoffload.errors import ExitCode


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--sessions", "x"], "argument --sessions: invalid int value: 'x'"),
        (["--engine", "gpu"], "argument --engine: invalid choice: 'gpu'"),
    ],
)
def test_a_wrong_option_is_a_usage_error(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["demo", *words])
    assert end.value.code == ExitCode.USAGE
    assert text in capsys.readouterr().err


def test_an_interpreter_without_vllm_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["demo", "--python", str(tmp_path / "none"), "--output", str(tmp_path / "out"), "--no-progress"])
    assert code == ExitCode.ENGINE
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_a_tier_beyond_the_machine_is_refused_before_the_boot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The control is measured first, so the refusal must come from looking at both arms before any boot.
    code = cli.main(["demo", "--size-gib", "4096", "--output", str(tmp_path / "out"), "--no-progress"])
    assert code == ExitCode.ENGINE
    assert "this server cannot start here" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("servers/*/server-*.log"))
