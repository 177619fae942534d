"""What the gate's page shows can be typed in: its configuration, its thresholds, its exit codes."""

from __future__ import annotations

import re
from pathlib import Path

from markdown_it import MarkdownIt

from pytest_kvoffload.commands.gate_plan import CONTROL
from pytest_kvoffload.config import build_config, parse_toml_text
from pytest_kvoffload.errors import ExitCode
from pytest_kvoffload.gate.policy import policy_of
from pytest_kvoffload.gate.thresholds import METRICS, parse_threshold, parse_thresholds

PAGE = (Path(__file__).parents[2] / "docs" / "gate.md").read_text(encoding="utf-8")


def test_the_configuration_of_the_example_is_one() -> None:
    (block,) = [t.content for t in MarkdownIt().parse(PAGE) if t.type == "fence" and t.info == "toml"]
    config = build_config(parse_toml_text(block, name="kvoffload.toml", source="gate.md"), source="gate.md")
    assert len(parse_thresholds(config.thresholds, arms=(*config.connectors, CONTROL))) == 3
    _, settings = policy_of(config.gate, {}, {})
    assert (settings.requests, settings.boots) == (600, 3)


def test_every_threshold_that_the_page_names_can_be_meant() -> None:
    named = {
        text
        for text in re.findall(r"`([^`\n]+)`", PAGE)
        if re.match(r"([a-z]+\.)*(" + "|".join(METRICS) + r")\w* .*[<>]", text)
    }
    assert len(named) >= 8
    for text in named:
        parse_threshold(text, arms=(CONTROL,))


def test_the_exit_codes_are_those_of_the_command() -> None:
    told = {int(code) for code in re.findall(r"^\| (\d+) \| ", PAGE, re.MULTILINE)}
    assert told == {code.value for code in ExitCode} - {ExitCode.SCRAPE}
