"""The base branch's configuration from git: what works, and the text of each refusal."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_kvoffload.cli import main
from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.gate.reference import read_at_base

OLD = '[connectors.native]\nkind = "native"\nsize_gib = 1\n'
NEW = OLD.replace("1\n", "2\n")


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "kvoffload.toml").write_text(OLD)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "old")
    git(folder, "checkout", "-q", "-b", "change")
    (folder / "kvoffload.toml").write_text(NEW)
    git(folder, "commit", "-q", "-am", "new")
    return folder


def test_the_base_is_read_without_touching_the_work_tree(repository: Path) -> None:
    found = read_at_base(repository / "kvoffload.toml", "main")
    assert found.text == OLD
    assert found.notes == ()
    assert (repository / "kvoffload.toml").read_text() == NEW
    assert git(repository, "status", "--porcelain") == ""


def test_a_dirty_tree_is_said(repository: Path) -> None:
    (repository / "kvoffload.toml").write_text(NEW + "# more\n")
    (note,) = read_at_base(repository / "kvoffload.toml", "main").notes
    assert note.startswith("kvoffload.toml has uncommitted changes")


def test_a_renamed_file_is_followed(repository: Path) -> None:
    (repository / "ci").mkdir()
    git(repository, "mv", "kvoffload.toml", "ci/kvoffload.toml")
    git(repository, "commit", "-q", "-m", "move")
    found = read_at_base(repository / "ci" / "kvoffload.toml", "main")
    assert (found.path, found.text) == ("kvoffload.toml", OLD)
    assert found.notes == ("ci/kvoffload.toml was kvoffload.toml at main",)


def test_a_base_without_the_file_is_refused(repository: Path) -> None:
    (repository / "other.toml").write_text("[engine]\n# nothing like the other file\n" * 5)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "other")
    with pytest.raises(
        UsageError, match=r"--base main: other\.toml does not exist there, so there is nothing to compare"
    ):
        read_at_base(repository / "other.toml", "main")


def test_an_unknown_revision_is_refused(repository: Path) -> None:
    with pytest.raises(UsageError, match="--base nowhere: git knows no such revision; git branch -a lists"):
        read_at_base(repository / "kvoffload.toml", "nowhere")


def test_a_shallow_clone_says_how_to_fetch(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "1", "--branch", "change", repository.as_uri(), str(clone))
    with pytest.raises(UsageError, match="this clone is shallow: fetch it first"):
        read_at_base(clone / "kvoffload.toml", "origin/main")


def test_outside_a_repository_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kvoffload.toml").write_text(OLD)
    with pytest.raises(UsageError, match="not inside a git repository"):
        read_at_base(tmp_path / "kvoffload.toml", "main")


@pytest.mark.parametrize(
    ("file", "words", "said"),
    [
        (
            "other.toml",
            ["--base", "main"],
            "--base main: other.toml does not exist there, so there is nothing to compare",
        ),
        (
            "kvoffload.toml",
            ["--base", "nowhere", "--candidate", "native"],
            "--base nowhere: git knows no such revision",
        ),
        (
            "kvoffload.toml",
            ["--base", "main", "--candidate", "added"],
            "no connector 'added' in kvoffload.toml at main (",
        ),
    ],
)
def test_the_command_refuses_before_anything_boots(
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    words: list[str],
    said: str,
) -> None:
    (repository / "other.toml").write_text('[connectors.x]\nkind = "native"\nsize_gib = 7\n# unlike the other\n')
    (repository / "kvoffload.toml").write_text(NEW + '[connectors.added]\nkind = "native"\nsize_gib = 1\n')
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "more")
    monkeypatch.chdir(repository)
    assert main(["gate", "--config", file, *words, "--no-progress"]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (repository / ".kvoffload").exists()
