"""The configuration of the base branch, read from git without touching the work tree."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from pytest_kvoffload.errors import UsageError

_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFile:
    """A file as it stood at a revision."""

    path: str
    revision: str
    commit: str
    text: str
    notes: tuple[str, ...] = ()


def read_at_base(path: Path, revision: str) -> BaseFile:
    """Read a file at a revision.

    Args:
        path: the file in the work tree.
        revision: anything git understands: ``origin/main``, a tag, a commit.

    Raises:
        UsageError: no git, no repository, no such revision (a shallow clone says how to fetch it), no such file there.
    """
    top = Path(_git(path.parent, "rev-parse", "--show-toplevel", failure="not inside a git repository").strip())
    relative = path.resolve().relative_to(top.resolve()).as_posix()
    try:
        commit = _git(top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", failure="").strip()
    except UsageError:
        shallow = _git(top, "rev-parse", "--is-shallow-repository", failure="git failed").strip() == "true"
        hint = (
            "this clone is shallow: fetch it first (actions/checkout with fetch-depth: 0, or git fetch origin main)"
            if shallow
            else "git branch -a lists what there is"
        )
        raise UsageError(f"--base {revision}: git knows no such revision; {hint}") from None
    notes: list[str] = []
    if _git(top, "status", "--porcelain", "--", relative, failure="git failed").strip():
        notes.append(f"{relative} has uncommitted changes: the candidate is the file as it lies in the work tree")
    old = relative
    if not _exists(top, commit, relative):
        renamed = _renamed_from(top, commit, relative)
        if renamed is None:
            raise UsageError(
                f"--base {revision}: {relative} does not exist there, so there is nothing to compare with; "
                f"use --reference control (or another connector, or a file) for its first commit"
            )
        old = renamed
        notes.append(f"{relative} was {old} at {revision}")
    text = _git(top, "show", f"{commit}:{old}", failure=f"cannot read {old} at {revision}")
    return BaseFile(path=old, revision=revision, commit=commit, text=text, notes=tuple(notes))


def commit_of(folder: Path) -> str | None:
    """Return the commit that is checked out around a folder, ``None`` outside a repository."""
    where = folder if folder.is_dir() else Path.cwd()
    try:
        return _git(where, "rev-parse", "--short=12", "HEAD", failure="git failed").strip() or None
    except UsageError:
        return None


def _exists(top: Path, commit: str, path: str) -> bool:
    return bool(_git(top, "ls-tree", "--name-only", commit, "--", path, failure="git failed").strip())


def _renamed_from(top: Path, commit: str, path: str) -> str | None:
    """Return the name that a file had at a commit, as git's rename detection sees it."""
    listing = _git(
        top, "diff", "--find-renames", "--diff-filter=R", "--name-status", "-z", commit, failure="git failed"
    )
    words = listing.split("\0")
    for kind, old, new in zip(words[0::3], words[1::3], words[2::3], strict=False):
        if kind.startswith("R") and new == path:
            return old
    return None


def _git(folder: Path, *words: str, failure: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except FileNotFoundError:
        raise UsageError("--base needs git, which is not on the PATH") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"git {words[0]} did not answer within {_TIMEOUT_SECONDS:g} s") from None
    if done.returncode:
        raise UsageError(f"--base: {failure or 'git failed'}: {done.stderr.strip() or 'no further word'}")
    return done.stdout
