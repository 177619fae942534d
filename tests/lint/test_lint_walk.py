"""Which files a run looks at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_kvoffload.lint.sources import interesting
from pytest_kvoffload.lint.sources.formats import TRIGGERS
from pytest_kvoffload.lint.walk import CORES, MAX_BYTES, Found, files

TEXT = "vllm serve m --kv-offloading-size 8\n"


def names(*paths: str, markdown: bool = False) -> tuple[list[str], Found]:
    """Return what a walk yields."""
    found = Found()
    return [path for path, _ in files(list(paths) or ["."], found, markdown=markdown)], found


@pytest.fixture(autouse=True)
def _in_a_fresh_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def put(path: str, text: str = TEXT) -> None:
    """Write a file."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def test_only_files_that_may_matter_are_yielded() -> None:
    put("a/run.sh")
    put("a/other.sh", "echo hello\n")
    put("b/image.png")
    assert names()[0] == ["a/run.sh"]


def test_folders_of_tools_are_skipped() -> None:
    for folder in (".git", "node_modules", ".venv", "venv", "__pycache__", "x/site-packages"):
        put(f"{folder}/run.sh")
    put(".github/workflows/ci.yml")
    assert names()[0] == [".github/workflows/ci.yml"]


def test_gitignore_files_count_in_their_folder_and_below() -> None:
    put(".gitignore", "build/\n*.gen.sh\n")
    put("build/run.sh")
    put("a/x.gen.sh")
    put("a/.gitignore", "!x.gen.sh\n/local.sh\n")
    put("a/local.sh")
    put("a/deeper/local.sh")
    put("b/y.gen.sh")
    assert names()[0] == ["a/x.gen.sh", "a/deeper/local.sh"]


def test_gitignore_of_the_repository_counts_when_a_folder_is_given() -> None:
    Path(".git").mkdir()
    put(".gitignore", "secret.sh\n")
    put("a/secret.sh")
    put("a/run.sh")
    assert names("a")[0] == ["a/run.sh"]


def test_a_named_file_is_read_although_ignored() -> None:
    put(".gitignore", "*\n")
    put("run.sh")
    assert names("run.sh")[0] == ["run.sh"]


def test_large_and_binary_files_are_said() -> None:
    put("big.sh", TEXT + "#" * MAX_BYTES)
    Path("blob.sh").write_bytes(b"vllm\0\1\2")
    yielded, found = names("big.sh", "blob.sh")
    assert yielded == []
    assert found.skipped == [("big.sh", "larger than 4 MB"), ("blob.sh", "binary")]


def test_symlink_loops_end_and_files_are_read_once() -> None:
    put("a/run.sh")
    Path("a/loop").symlink_to("../a")
    Path("again.sh").symlink_to("a/run.sh")
    assert sorted(names()[0]) == ["again.sh"]


def test_a_dangling_link_is_said() -> None:
    Path("run.sh").symlink_to("nowhere")
    yielded, found = names()
    assert yielded == []
    assert found.skipped == [("run.sh", "No such file or directory")]


def test_a_pipe_does_not_block() -> None:
    os.mkfifo("pipe.sh")
    assert names()[0] == []


def test_markdown_is_on_request() -> None:
    put("README.md", f"```sh\n{TEXT}```\n")
    assert names()[0] == []
    assert names(markdown=True)[0] == ["README.md"]


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_the_fast_filter_misses_no_trigger(trigger: bytes) -> None:
    assert any(core in trigger for core in CORES)
    assert interesting(trigger)
    Path("a.sh").write_bytes(b"x = " + trigger.upper() + b"\n")
    assert names()[0] == ["a.sh"]
