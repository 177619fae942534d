"""A directory for a disk tier that can be filled, made read-only, emptied and corrupted, and that always goes away.

Where this process may mount, the directory is a small tmpfs of its own, so that "full" and "read-only" are the real
thing. A janitor process undoes all of it even when this process is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pytest_kvoffload.faults import janitor
from pytest_kvoffload.faults.catalog import FaultImpossibleError

BALLAST = "kvoffload-ballast"
DEFAULT_BYTES = 512 * 2**20


class TierDisk:
    """The directory ``path``. Use as a context manager.

    Args:
        size_bytes: capacity, where it can be limited.
        mount: whether to try to mount; without, "full" is not to be had.
    """

    def __init__(self, *, size_bytes: int = DEFAULT_BYTES, mount: bool = True) -> None:
        base = tempfile.mkdtemp(prefix="kvo-disk-")
        self.path = Path(base)
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(janitor.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(json.dumps([base]).encode() + b"\n")
        self._keeper.stdin.flush()
        self.refusal = "" if mount else "no mount was asked for"
        if mount:
            self.refusal = _mount(base, size_bytes)

    @property
    def limited(self) -> bool:
        """Whether it is a file system of its own; ``refusal`` says why not."""
        return not self.refusal

    def __enter__(self) -> TierDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmount and remove it. Safe to repeat."""
        if self._keeper.stdin is not None and not self._keeper.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.close()
        try:
            self._keeper.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        if self.path.exists():
            janitor.undo([str(self.path)])

    def files(self) -> list[Path]:
        """The tier's files."""
        return sorted(path for path in self.path.rglob("*") if path.is_file() and path.name != BALLAST)

    # ------------------------------------------------------------------------------------- faults and their undoing
    def fill(self) -> Callable[[], None]:
        """Leave no byte free. Returns what ends it.

        Raises:
            FaultImpossibleError: the directory is no file system of its own.
        """
        if not self.limited:
            raise FaultImpossibleError(
                f"a full disk needs a file system of its own, which could not be mounted: {self.refusal}"
            )
        ballast = self.path / BALLAST
        chunk = bytes(64 * 1024)
        with ballast.open("wb", buffering=0) as out, contextlib.suppress(OSError):
            while True:
                out.write(chunk)
        return lambda: ballast.unlink(missing_ok=True)

    def make_read_only(self) -> Callable[[], None]:
        """Refuse every write. Returns what ends it.

        Raises:
            FaultImpossibleError: neither a remount nor permissions can do it.
        """
        if self.limited:
            _remount(str(self.path), "ro")
            return lambda: _remount(str(self.path), "rw")
        if os.geteuid() == 0:
            raise FaultImpossibleError(f"permissions do not stop root, and nothing could be mounted: {self.refusal}")
        changed = [(path, path.stat().st_mode) for path in (self.path, *_directories(self.path))]
        for path, mode in changed:
            path.chmod(mode & ~0o222)

        def undo() -> None:
            for path, mode in changed:
                path.chmod(mode)

        return undo

    def delete_files(self) -> int:
        """Delete the tier's files under the running server, directories left; return how many there were."""
        found = self.files()
        for path in found:
            path.unlink(missing_ok=True)
        return len(found)

    def corrupt_files(self) -> int:
        """Invert every byte of every file in place, sizes and times unchanged; return how many."""
        return sum(_if_there(_invert_file, path) for path in self.files())

    def truncate_files(self) -> int:
        """Cut every file to half; return how many."""
        return sum(_if_there(_halve_file, path) for path in self.files())


def invert(raw: bytes) -> bytes:
    """Every byte inverted."""
    return raw.translate(bytes(255 - value for value in range(256)))


def _if_there(damage: Callable[[Path], None], path: Path) -> bool:
    """Damage a file; return whether it was still there: a tier that writes just now renames its own."""
    try:
        damage(path)
    except FileNotFoundError:
        return False
    return True


def _invert_file(path: Path) -> None:
    before = path.stat()
    with path.open("r+b") as file:
        raw = file.read()
        file.seek(0)
        file.write(invert(raw))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _halve_file(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _directories(path: Path) -> Iterator[Path]:
    return (child for child in path.rglob("*") if child.is_dir())


def _mount(path: str, size_bytes: int) -> str:
    """Mount a tmpfs; return why that was refused, empty when it was not."""
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700", "kvoffload", path],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"mount cannot be run ({error})"
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["mount failed"])[-1] + ("" if os.geteuid() == 0 else "; not root")
    return ""


def _remount(path: str, mode: str) -> None:
    """Remount; a file that is being written just now keeps it busy for a moment."""
    for _ in range(100):
        done = subprocess.run(
            ["mount", "-o", f"remount,{mode}", path], capture_output=True, text=True, check=False, timeout=20
        )
        if done.returncode == 0:
            return
        time.sleep(0.1)
    raise FaultImpossibleError(f"{path} could not be remounted {mode}: {done.stderr.strip()}")
