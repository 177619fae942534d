"""The documents do not drift: links lead somewhere, commands and options exist, code and configuration are legal."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from pytest_kvoffload import cli
from pytest_kvoffload.config import CONFIG_NAME, build_config, parse_toml_text

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
KVOFFLOAD = re.compile(r"(?:^|[\s`&;(])kvoffload ([a-z]+)((?: [^`\n|&;#)]*)?)")
SECTIONS = ("[model]", "[engine]", "[connectors", "[workload]", "[gate]", "[lint]")


def fences(page: Path, *languages: str) -> list[str]:
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    return [t.content for t in tokens if t.type == "fence" and t.info.split(" ")[0] in languages]


def options_of(command: str) -> set[str]:
    parser = argparse.ArgumentParser(prog=command)
    importlib.import_module(f"pytest_kvoffload.commands.{command}").build_parser(parser)
    found: set[str] = set()
    pending = [parser]
    while pending:
        for action in pending.pop()._actions:
            found.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                pending.extend(action.choices.values())
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target or target.startswith(("#", "mailto:")):
            continue
        assert (page.parent / target.partition("#")[0]).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_and_options_exist(page: Path) -> None:
    for block in fences(page, "console", "sh", "bash", "shell"):
        for command, rest in KVOFFLOAD.findall(block.replace("\\\n", " ")):
            assert command in cli.COMMANDS, f"{page.name}: kvoffload {command}"
            known = options_of(command)
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest):
                assert option in known, f"{page.name}: kvoffload {command} {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_compile(page: Path) -> None:
    for block in fences(page, "python", "py"):
        compile(block, str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_configuration_blocks_are_legal(page: Path) -> None:
    for block in fences(page, "toml"):
        if not block.lstrip().startswith(SECTIONS):
            continue  # a pyproject.toml of something else
        build_config(parse_toml_text(block, name=CONFIG_NAME, source=page.name), source=page.name)


def test_every_command_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [name for name in cli.COMMANDS if f"kvoffload {name}" not in text]
    assert missing == []


def test_every_page_of_the_docs_is_linked_from_the_readme_or_another_page() -> None:
    everything = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for page in sorted((ROOT / "docs").glob("*.md")):
        linked = any(page.name in text for other, text in everything.items() if other != page)
        assert linked, f"{page.name} is linked from nowhere"


def test_the_readme_reaches_the_first_success_in_thirty_lines() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert next(i for i, line in enumerate(lines, 1) if "kvoffload demo" in line) <= 30


def test_the_public_assertions_are_documented() -> None:
    from pytest_kvoffload import assertions

    text = (ROOT / "docs" / "assertions.md").read_text(encoding="utf-8")
    assert [n for n in assertions.__all__ if n.startswith("assert_") and n not in text] == []


def test_options_of_pytest_are_documented() -> None:
    source = (ROOT / "pytest_kvoffload" / "options.py").read_text(encoding="utf-8")
    options = set(re.findall(r'"(--kvoffload-[a-z-]+)"', source))
    text = (ROOT / "docs" / "pytest.md").read_text(encoding="utf-8")
    assert sorted(option for option in options if option not in text) == []
