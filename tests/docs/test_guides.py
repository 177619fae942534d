"""The guides are followed to the letter as far as that goes without a GPU, against a small but true server."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM
from markdown_it import MarkdownIt

from pytest_kvoffload import cli

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "ten-minute-guide.md"
SHORT = ("prefix_tokens = 8192", "prefix_tokens = 128")
"""The only change: prompts for a server whose device cache is a hundredth of the guide's."""


def blocks(page: Path, language: str) -> list[str]:
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    return [token.content for token in tokens if token.type == "fence" and token.info == language]


def suites_of(page: Path) -> list[str]:
    """Return the test files among a page's Python blocks."""
    return [block for block in blocks(page, "python") if "def test_" in block]


@pytest.fixture(scope="module")
def control() -> Iterator[FakeVLLM]:
    with FakeVLLM(FakeConfig(seconds_per_token=5e-4)) as server:
        yield server


def run(folder: Path, native: FakeVLLM, control: FakeVLLM, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the guide's pytest command; the servers that it would boot are there already."""
    urls = [f"--kvoffload-url={name}={server.url}" for name, server in (("native", native), ("control", control))]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *urls, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """What steps 2 and 3 leave: the files of ``kvoffload init``, and the guide's configuration."""
    (init,) = [line for block in blocks(GUIDE, "console") for line in block.splitlines() if "kvoffload init" in line]
    words = shlex.split(init)
    assert words[0] == "kvoffload"
    assert cli.main([*words[1:], "--directory", str(tmp_path)]) == 0
    configuration = blocks(GUIDE, "toml")[0]
    assert SHORT[0] in configuration
    (tmp_path / "kvoffload.toml").write_text(configuration.replace(*SHORT))
    return tmp_path


def test_red(repository: Path, control: FakeVLLM) -> None:
    small = blocks(GUIDE, "toml")[1]
    whole = (repository / "kvoffload.toml").read_text()
    changed = re.sub(r"(?s)\[connectors\.native\].*?\n\n", small + "\n", whole)
    assert "size_gib = 0.001" in changed
    (repository / "kvoffload.toml").write_text(changed)
    with FakeVLLM(FakeConfig(tier_blocks=4, seconds_per_token=5e-4)) as native:
        done = run(repository, native, control, "tests/test_offload.py", "-k", "serves_the_revisit")
    assert done.returncode == 1
    shown = blocks(GUIDE, "text")[0]
    for words in ("the tier was never reached in phase 'restored' of 'native'", "outcome      tier-not-exercised"):
        assert words in shown
        assert words in done.stdout
    assert "what to do: the tier is too small: it refused" in shown
    assert "what to do: the tier is too small: it refused" in done.stdout


def test_green_with_the_tests_of_every_page(repository: Path, control: FakeVLLM) -> None:
    pages = (GUIDE, ROOT / "README.md", ROOT / "docs" / "three-meters.md")
    for page in pages:
        (text,) = suites_of(page)
        name = page.stem.lower().replace("-", "_")
        (repository / "tests" / f"test_{name}.py").write_text(text)
    with FakeVLLM(FakeConfig(tier_blocks=800, seconds_per_token=5e-4)) as native:
        done = run(repository, native, control, "tests", "--kvoffload-html", "report.html")
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout
    assert (repository / "report.html").stat().st_size > 10_000


def test_the_sizes_that_the_guide_names_are_what_the_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = [line for block in blocks(GUIDE, "console") for line in block.splitlines() if "kvoffload size" in line]
    assert cli.main(shlex.split(line)[1:]) == 0
    said = capsys.readouterr().out
    needed = re.search(r"the settings say ([\d.]+) GiB", said)
    assert needed is not None, said
    chosen = re.search(r"size_gib = (\d+)", blocks(GUIDE, "toml")[0])
    assert chosen is not None
    assert float(needed[1]) <= float(chosen[1]), "the guide's tier is too small for its own workload"


def test_meters_from_python_as_the_page_says() -> None:
    (block,) = [block for block in blocks(ROOT / "docs" / "meters.md", "python") if "read_meters" in block]
    with FakeVLLM(FakeConfig(tier_blocks=400)) as server:
        exec(compile(block.replace("http://localhost:8000", server.url), "meters.md", "exec"), {})


def test_the_example_workflow_that_the_guide_copies_is_there() -> None:
    assert (ROOT / "example_suite" / "github-workflow.yml").is_file()
