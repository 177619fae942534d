"""A program under a pseudo-terminal, and what a person would have seen: drawn by a terminal emulator (pyte).

seen = record([sys.executable, "-m", "pytest"], columns=80)
seen.screen       # every line that is left when it has ended, scrolled away or not
seen.frames       # every state that a changed line had in between
seen.overflows    # lines that did not fit the width
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyte

ROWS, SCROLLBACK, SLACK = 24, 600, 400
UNWANTED = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "CI", "BUILD_NUMBER", "PYTEST_ADDOPTS")
"""What would make a program draw otherwise than for the person at this terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a program drew."""

    columns: int
    raw: str
    screen: tuple[str, ...]
    """Lines at the end, without what blanks follow."""
    frames: tuple[str, ...]
    """Each text that a line has shown at some time, in order."""
    code: int

    @property
    def text(self) -> str:
        """The lines at the end."""
        return "\n".join(self.screen)

    @property
    def overflows(self) -> list[str]:
        """Lines, at the end or in between, that are wider than the terminal."""
        return [line for line in (*self.frames, *self.screen) if len(line) > self.columns]

    @property
    def colours(self) -> list[str]:
        """Escape sequences that set a colour."""
        found = re.findall(r"\x1b\[([0-9;]*)m", self.raw)
        codes = {code for sequence in found for code in sequence.split(";")}
        return sorted(code for code in codes if re.fullmatch(r"(3|4|9|10)\d", code))


def record(
    command: Sequence[str],
    *,
    columns: int,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    timeout_seconds: float = 180.0,
    on_output: Callable[[int, str], None] | None = None,
) -> Recording:
    """Run a command on a terminal of its own and draw what it writes.

    The emulator is far wider than the terminal that the program sees: what a real terminal would wrap stays one line,
    and is found.

    Args:
        command: what to run.
        columns: width of the terminal.
        cwd: where.
        environment: added to this process's own, from which everything that changes colours and widths is taken.
        timeout_seconds: after which it is killed, and the test fails.
        on_output: called with the pid and everything that was written until now.
    """
    env = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    env |= {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(environment or {})}
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    process = subprocess.Popen(
        command, cwd=cwd, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, close_fds=True
    )
    os.close(slave)
    screen = pyte.Screen(columns + SLACK, SCROLLBACK)
    stream = pyte.ByteStream(screen)
    raw = bytearray()
    frames: list[str] = []
    deadline = time.monotonic() + timeout_seconds
    try:
        while time.monotonic() < deadline:
            if not select.select([master], [], [], 0.2)[0]:
                continue
            try:
                chunk = os.read(master, 65536)
            except OSError:  # the other end is closed: Linux says EIO
                break
            if not chunk:
                break
            raw += chunk
            stream.feed(chunk)
            for number in sorted(screen.dirty):
                line = _line(screen, number)
                if line and (not frames or frames[-1] != line):
                    frames.append(line)
            screen.dirty.clear()
            if on_output is not None:
                on_output(process.pid, raw.decode("utf-8", "replace"))
        else:
            raise AssertionError(f"not done after {timeout_seconds} s: {raw[-2000:]!r}")
        code = process.wait(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)
    lines = [_line(screen, number) for number in range(SCROLLBACK)]
    while lines and not lines[-1]:
        lines.pop()
    return Recording(
        columns=columns,
        raw=raw.decode("utf-8", "replace"),
        screen=tuple(lines),
        frames=tuple(frames),
        code=code,
    )


def _line(screen: pyte.Screen, number: int) -> str:
    cells = screen.buffer[number]
    width = max(cells, default=-1) + 1
    return "".join(cells[column].data for column in range(width)).rstrip()
