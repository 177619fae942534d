"""What is refused before a boot, and how one insists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_kvoffload.boot_checks import before_boot
from pytest_kvoffload.errors import LintError, PreflightError, UsageError
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig
from pytest_kvoffload.session import Arm


def arm(options: dict[str, Any], *, kind: str = "native", engine: str = "cpu") -> Arm:
    connector = ConnectorConfig(name="x", kind=kind, options=options)
    return Arm(engine=EngineConfig(kind=engine), model=ModelConfig(), connector=connector)  # type: ignore[arg-type]


TOO_SMALL = {"cpu_bytes_to_use": 8}


def test_a_lint_error_refuses_the_boot_and_says_how_to_insist() -> None:
    with pytest.raises(LintError) as caught:
        before_boot(warn=print)(arm(TOO_SMALL))
    text = str(caught.value)
    assert text.startswith("the configuration of [connectors.x] was refused before the boot:")
    assert "[KVO701 below-one-chunk]; write 8589934592 for 8 GiB" in text
    assert "--kvoffload-lint=warn, or list the code in [lint] ignore" in text


@pytest.mark.parametrize(
    ("level", "settings", "warned"),
    [
        ("warn", {}, 1),
        ("off", {}, 0),
        ("error", {"ignore": ["KVO701"]}, 0),
        ("error", {"ignore": ["below-one-chunk"]}, 0),
    ],
)
def test_one_can_insist(level: str, settings: dict[str, Any], warned: int) -> None:
    said: list[str] = []
    before_boot(warn=said.append, lint=level, settings=settings)(arm(TOO_SMALL))
    assert len([text for text in said if "[connectors.x]" in text and "KVO701" in text]) == warned


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ignor": []}, r"\[lint\] ignor: got an unknown key; expected ignore"),
        ({"ignore": "KVO701"}, r"\[lint\] ignore: got 'KVO701'; expected a list of rule codes or names"),
        ({"ignore": ["KVO999"]}, "KVO999"),
    ],
)
def test_a_wrong_lint_section_is_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        before_boot(warn=print, settings=settings)(arm({"size_gib": 1.0}))


def test_a_tier_larger_than_the_machine_is_refused_by_preflight() -> None:
    huge = arm({"size_gib": 4096.0})
    with pytest.raises(PreflightError, match="this server cannot start here"):
        before_boot(warn=print)(huge)
    said: list[str] = []
    before_boot(warn=said.append, insist=True)(huge)
    assert any(text.startswith("x: booted although") for text in said)


def test_an_attached_server_is_not_judged() -> None:
    before_boot(warn=print)(arm(TOO_SMALL, engine="attach"))


def test_what_was_found_is_recorded_for_the_report_also_when_it_refuses(tmp_path: Path) -> None:
    said: list[str] = []
    refused, fine = arm(TOO_SMALL), arm({"size_gib": 0.125})
    with pytest.raises(LintError):
        before_boot(warn=said.append, record=tmp_path)(refused)
    before_boot(warn=said.append, record=tmp_path)(fine)
    (lint,) = [line for line in _recorded(tmp_path, refused) if line["kind"] == "lint" and line["outcome"] == "error"]
    assert lint["arm"] == "x"
    assert lint["name"] == "KVO701 below-one-chunk"
    assert "8589934592" in lint["text"]
    checks = [line for line in _recorded(tmp_path, fine) if line["kind"] == "preflight"]
    assert {"name", "outcome", "text"} <= set(checks[0])
    assert "ok" in {line["outcome"] for line in checks}
    assert all(line["text"] for line in checks)


def _recorded(folder: Path, checked: Arm) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((folder / "checks" / f"{checked.key}.json").read_text())
    return found
