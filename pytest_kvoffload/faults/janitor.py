"""Undoes what a killed run cannot: unmounts and removes directories once its standard input ends.

Run as a script (standard library only). Its standard input is one JSON list of directories, one line, and then stays
open for as long as its owner lives or wants them; the kernel closes it when the owner is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TRIES = 50


def is_mount(path: str) -> bool:
    """Whether something is mounted exactly there."""
    try:
        table = Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return os.path.ismount(path)
    escaped = path.replace(" ", "\\040")
    return any(line.split()[4] == escaped for line in table.splitlines())


def undo(directories: Sequence[str]) -> list[str]:
    """Unmount and remove these directories; return those that are still there."""
    for path in directories:
        for attempt in range(TRIES):
            if not is_mount(path):
                break
            # A busy mount is detached at once all the same (-l) and goes when its last user does.
            words = ["umount", path] if attempt < TRIES // 2 else ["umount", "-l", path]
            done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            if done.returncode != 0:
                time.sleep(0.1)
        if not is_mount(path):
            _make_removable(path)
            shutil.rmtree(path, ignore_errors=True)
    return [path for path in directories if Path(path).exists()]


def _make_removable(path: str) -> None:
    for root, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            Path(root).chmod(0o700)


def main() -> int:
    """Wait for the end of the owner, then undo."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    directories = json.loads(sys.stdin.readline() or "[]")
    while sys.stdin.read(4096):
        pass
    return 1 if undo(directories) else 0


if __name__ == "__main__":
    sys.exit(main())
