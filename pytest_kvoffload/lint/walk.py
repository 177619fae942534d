"""Which files to lint: directories walked with their ignore files, everything bounded.

A tree is mostly other people's files, so nothing is decoded before a look at its bytes says that it may matter.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_kvoffload.errors import UsageError

MAX_BYTES = 4_000_000
"""A larger file is data, not a configuration: it is named and not read."""

SKIPPED_FOLDERS = frozenset(
    {".git", ".hg", ".svn", ".jj", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".nox", ".mypy_cache",
     ".ruff_cache", ".pytest_cache", ".eggs", "site-packages", ".terraform", ".cache"}
)  # fmt: skip

SKIPPED_ENDINGS = frozenset(
    {
        ".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".ico", ".pdf", ".zip", ".gz", ".tgz", ".bz2", ".xz",
        ".zst", ".7z", ".tar", ".whl", ".so", ".o", ".a", ".dylib", ".dll", ".exe", ".bin", ".pyc", ".pt",
        ".pth", ".safetensors", ".gguf", ".onnx", ".npy", ".npz", ".parquet", ".arrow", ".mp3", ".mp4", ".wav",
        ".mov", ".ttf", ".woff", ".woff2", ".jar", ".class", ".db", ".sqlite", ".lock", ".css",
        ".js", ".mjs", ".ts", ".tsx", ".jsx", ".html", ".htm", ".map", ".csv", ".tsv", ".jsonl", ".log", ".c",
        ".cc", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".rs", ".go", ".java", ".kt", ".swift", ".rb", ".php",
        ".proto", ".rst", ".tex", ".bib", ".po"
    }
)  # fmt: skip
"""Endings that no reader knows; a file named on the command line is read whatever its name."""


@dataclass(slots=True)
class Found:
    """What a walk saw besides the files that it yields."""

    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Path and reason, for files that could have mattered and were not read."""
    seen: int = 0


def files(paths: Sequence[str], found: Found, *, markdown: bool = False) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of every file that may matter, each once, in a stable order.

    Args:
        paths: Files and directories as the user gave them.
        found: Filled with what was skipped and how much was seen.
        markdown: Whether Markdown files matter.

    Raises:
        UsageError: a path that does not exist or cannot be read.
    """
    done: set[tuple[int, int]] = set()
    for given in paths:
        path = Path(given)
        if not path.exists():
            raise UsageError(f"no such file or directory: {given}")
        if path.is_dir():
            for name in walk(str(path), markdown=markdown):
                found.seen += 1
                content = _read(name, found, done)
                if content is not None and _matters(content):
                    yield _shown(name), content
        else:
            found.seen += 1
            content = _read(given, found, done, named=True)
            if content is not None:
                yield _shown(given), content


def _shown(path: str) -> str:
    return path[2:] if path.startswith("./") else path


CORES = (b"kv", b"vllm", b"cache", b"offload", b"sglang", b"swap", b"local_")
"""Every trigger of the readers contains one of these. Plain searches, short ones first, are many times faster than a
pattern that ignores case."""


def _matters(content: bytes) -> bool:
    """Whether the readers could find something: the same answer as ``sources.interesting``, sooner."""
    from pytest_kvoffload.lint.sources.formats import TRIGGERS

    lower = content.lower()
    for core in CORES:
        if core in lower:
            return any(trigger in lower for trigger in TRIGGERS)
    return False


def _read(name: str, found: Found, done: set[tuple[int, int]], *, named: bool = False) -> bytes | None:
    """Return the content of a regular text file; O_NONBLOCK keeps a FIFO from holding the walk."""
    try:
        handle = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        found.skipped.append((_shown(name), error.strerror or "cannot be read"))
        return None
    try:
        status = os.fstat(handle)
        identity = (status.st_dev, status.st_ino)
        if identity in done:
            return None
        done.add(identity)
        if not stat.S_ISREG(status.st_mode):
            if named:
                found.skipped.append((_shown(name), "not a regular file"))
            return None
        if status.st_size > MAX_BYTES:
            found.skipped.append((_shown(name), f"larger than {MAX_BYTES // 10**6} MB"))
            return None
        content = os.read(handle, status.st_size + 1)
        while len(content) < status.st_size and (more := os.read(handle, status.st_size - len(content))):
            content += more
    except OSError as error:
        found.skipped.append((_shown(name), error.strerror or "cannot be read"))
        return None
    finally:
        os.close(handle)
    if b"\0" in content[:8000]:
        if named:
            found.skipped.append((_shown(name), "binary"))
        return None
    return content


def walk(root: str, *, markdown: bool = False) -> Iterator[str]:
    """Yield the files under ``root`` that its ignore files leave, sorted; a folder is entered once.

    ``.gitignore`` files count in their own folder and below, those of the parents up to the repository's root too.
    """
    specs = _parent_specs(Path(root).resolve())
    yield from _walk(root, specs, set(), markdown)


def _walk(folder: str, specs: list[tuple[str, object]], entered: set[tuple[int, int]], markdown: bool) -> Iterator[str]:
    try:
        status = os.stat(folder)
        entries = sorted(os.scandir(folder), key=lambda e: e.name)
    except OSError:
        return
    identity = (status.st_dev, status.st_ino)
    if identity in entered or len(entered) > 200_000:
        return  # a symbolic link back to a folder above
    entered.add(identity)
    own = specs
    if any(e.name == ".gitignore" for e in entries):
        spec = _spec(os.path.join(folder, ".gitignore"))
        if spec is not None:
            own = [*specs, (os.path.abspath(folder), spec)]
    folders = []
    for entry in entries:
        try:
            directory = entry.is_dir()
        except OSError:
            continue
        if directory:
            if entry.name not in SKIPPED_FOLDERS and not (own and _ignored(entry.path, own, directory=True)):
                folders.append(entry.path)
            continue
        ending = os.path.splitext(entry.name)[1].lower()
        if ending in SKIPPED_ENDINGS or (not markdown and ending in {".md", ".mdx", ".markdown"}):
            continue
        if not (own and _ignored(entry.path, own, directory=False)):
            yield entry.path
    for path in folders:
        yield from _walk(path, own, entered, markdown)


def _spec(path: str) -> object | None:
    import pathspec

    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return pathspec.GitIgnoreSpec.from_lines(lines)


def _parent_specs(folder: Path) -> list[tuple[str, object]]:
    """Return the ignore files above ``folder``, outermost first, when it lies in a repository."""
    chain = [folder, *folder.parents]
    root = next((i for i, f in enumerate(chain) if (f / ".git").exists()), None)
    if root is None:
        return []
    found = []
    for parent in reversed(chain[1 : root + 1]):
        spec = _spec(str(parent / ".gitignore")) if (parent / ".gitignore").is_file() else None
        if spec is not None:
            found.append((str(parent), spec))
    return found


def _ignored(path: str, specs: list[tuple[str, object]], *, directory: bool) -> bool:
    """Apply the ignore files from the outermost in: a later one may take a file back."""
    full = os.path.abspath(path)
    ignored = False
    for base, spec in specs:
        relative = os.path.relpath(full, base).replace(os.sep, "/") + ("/" if directory else "")
        result = spec.check_file(relative).include  # type: ignore[attr-defined]
        if result is not None:
            ignored = bool(result)
    return ignored
