"""The supervisor of one server: a tiny process that outlives a killed owner and leaves nothing behind.

Run as a script (standard library only, no imports of the package). Its first line of standard input is a JSON object
(an argument would show the server's environment to every ``ps``):

``owner_pid``/``owner_start``  the process whose death ends the server (start time in clock ticks, to notice a reused
    pid); ``command``, ``env``, ``log``, ``cwd``  what to run and where its output goes; ``status``  a file that
    receives ``{"guard_pid", "server_pid", "exit_code"}``; ``engine_id``  names the server's files in /dev/shm;
    ``secrets``  what is replaced by ``***`` in the server's output before it is written;
    ``scratch``  a folder for its sockets and temporary files, removed at the end;
    ``grace``  seconds between SIGTERM and SIGKILL.

It is the server's parent and a "child subreaper", so that processes that detach themselves from the server are still
its descendants and can be found. It ends the server when the owner dies, or when it receives SIGTERM or SIGINT.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

OWNER_GONE_GRACE_SECONDS = 4.0
FIRST_LOOK_SECONDS = 10.0
"""When the server's shared memory is first looked at; then after twice the time each."""
POLL_SECONDS = 0.5
IDLE_SECONDS = 1.0
COPIER_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; ``None`` when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def descendants(root: int) -> list[int]:
    """Every living process below ``root``, children first seen first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] not in (b"Z", b"X"):
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            found.append(child)
            queue.append(child)
    return found


def remove_shared_memory(engine_id: str, directory: str = "/dev/shm") -> list[str]:
    """Remove the offload regions of this engine and return their names. An empty id removes nothing."""
    removed: list[str] = []
    if not engine_id:
        return removed
    with contextlib.suppress(OSError):
        for path in Path(directory).iterdir():
            if path.name.startswith(f"vllm_offload_{engine_id}"):
                with contextlib.suppress(OSError):
                    path.unlink()
                    removed.append(path.name)
    return removed


def mapped_shared_memory(pids: list[int], since: float, directory: str = "/dev/shm") -> set[str]:
    """Files in ``directory`` that these processes map and that were created after ``since`` (seconds, wall clock).

    Compared by inode: a semaphore is mapped under the name that it had for a moment while it was made.
    """
    mapped: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                if f" {directory}/" in line:
                    mapped.add(int(line.split(maxsplit=5)[4]))
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for path in Path(directory).iterdir():
            with contextlib.suppress(OSError):
                facts = path.stat()
                if facts.st_ino in mapped and facts.st_ctime >= since - 1.0:
                    found.add(str(path))
    return found


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def secret_pattern(secrets: Sequence[str]) -> re.Pattern[bytes] | None:
    """What finds these secrets as words of their own; ``None`` when there are none."""
    if not secrets:
        return None
    words = b"|".join(re.escape(secret.encode()) for secret in sorted(secrets, key=len, reverse=True))
    return re.compile(rb"(?<![A-Za-z0-9])(?:" + words + rb")(?![A-Za-z0-9])")


def copy_masked(source: int, target: int, masks: re.Pattern[bytes]) -> None:
    """Copy whole lines from one descriptor to another, masked; close both at the end.

    An unfinished line is written once nothing has come for a while, so that a question or a progress bar is seen.
    """
    held = b""
    try:
        while True:
            ready, _, _ = select.select([source], [], [], IDLE_SECONDS if held else None)
            if ready:
                data = os.read(source, 65536)
                held += data
                cut = len(held) if not data else max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
            else:
                data, cut = b" ", len(held)
            if cut:
                _write_all(target, masks.sub(b"***", held[:cut]))
                held = held[cut:]
            if not data:
                return
    finally:
        os.close(source)
        os.close(target)


def _write_all(target: int, data: bytes) -> None:
    """Write everything; a full disk loses lines of a log, and must not stop the server that prints them."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(target, data) :]


class Guard:
    """One server and the reasons to end it."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.asked_to_stop = False
        self.began = time.time()
        self.next_look = self.began + FIRST_LOOK_SECONDS
        self.shared_memory: set[str] = set()
        self.server: subprocess.Popen[bytes] | None = None
        self.copier: threading.Thread | None = None
        self.wake_read, wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _on_stop(self, *_: object) -> None:
        self.asked_to_stop = True

    def owner_alive(self) -> bool:
        """Whether the owner still runs, and is still the same process."""
        return bool(start_ticks(self.job["owner_pid"]) == self.job["owner_start"])

    def write_status(self, exit_code: int | None) -> None:
        """Publish pids and exit code, atomically."""
        status = {
            "guard_pid": os.getpid(),
            "server_pid": self.server.pid if self.server else None,
            "exit_code": exit_code,
        }
        temporary = Path(f"{self.job['status']}.new")
        temporary.write_text(json.dumps(status), encoding="utf-8")
        temporary.replace(self.job["status"])

    def run(self) -> int:
        """Start the server, watch, end it, clean up; return the server's exit code."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        if not self.owner_alive():
            self.remove_scratch()
            return 1
        with self.output() as out:
            self.server = subprocess.Popen(
                self.job["command"],
                env=self.job["env"],
                cwd=self.job["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Should this guard itself be killed outright, the server follows it.
                preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        self.write_status(None)
        grace = self.watch()
        self.end(grace)
        code = self.server.returncode
        self.remove_leftovers()
        if self.copier is not None:
            self.copier.join(COPIER_SECONDS)
        self.write_status(code)
        return 0

    @contextlib.contextmanager
    def output(self) -> Iterator[int]:
        """Yield where the server's output goes: the log, or a pipe to the thread that takes the secrets out."""
        log = os.open(self.job["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        masks = secret_pattern(self.job["secrets"])
        if masks is None:
            yield log
            os.close(log)
            return
        source, sink = os.pipe()
        self.copier = threading.Thread(target=copy_masked, args=(source, log, masks), daemon=True)
        self.copier.start()
        yield sink
        os.close(sink)  # the server's own ends stay open until it and all its children are gone

    def watch(self) -> float:
        """Wait for a reason to end; return the grace in seconds that the server gets."""
        assert self.server is not None
        watched = [self.wake_read]
        with contextlib.suppress(OSError, AttributeError):
            watched.append(os.pidfd_open(self.job["owner_pid"]))
        while True:
            self._reap()
            if self.server.poll() is not None:
                self.write_status(self.server.returncode)
                return 0.0
            if self.asked_to_stop:
                return float(self.job["grace"])
            if time.time() >= self.next_look:
                # Whoever dies without a goodbye takes what it mapped out of sight: remember it, ever more seldom.
                self.shared_memory |= mapped_shared_memory(descendants(os.getpid()), self.began)
                self.next_look = time.time() + max(FIRST_LOOK_SECONDS, time.time() - self.began)
            if not self.owner_alive():
                return min(OWNER_GONE_GRACE_SECONDS, float(self.job["grace"]))
            ready, _, _ = select.select(watched, [], [], POLL_SECONDS if len(watched) == 1 else 5.0)
            if self.wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake_read, 4096)

    def end(self, grace: float) -> None:
        """SIGTERM, wait, SIGKILL: the server, its process group and every descendant."""
        assert self.server is not None
        self.shared_memory |= mapped_shared_memory(descendants(os.getpid()), self.began)
        if self.server.returncode is None:
            # Only the server itself: it tells its own children, and a child that is told twice may die badly.
            _kill(self.server.pid, signal.SIGTERM)
            deadline = time.monotonic() + grace
            while self.server.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
        # What the server left behind: two seconds to go by themselves, then no more. Python's resource trackers come
        # last: when all others are gone they remove shared memory and semaphores that nobody has removed.
        grace = 2.0 if self.server.poll() is not None else 0.0
        self._wait_for_descendants(grace, trackers_too=True)
        self.shared_memory |= mapped_shared_memory(descendants(os.getpid()), self.began)
        self._kill_descendants(trackers_too=False)
        self._wait_for_descendants(2.0, trackers_too=True)
        self._kill_descendants(trackers_too=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.server.wait(timeout=2.0)

    def _left(self, *, trackers_too: bool) -> list[int]:
        self._reap()
        return [pid for pid in descendants(os.getpid()) if trackers_too or not _is_tracker(pid)]

    def _wait_for_descendants(self, seconds: float, *, trackers_too: bool) -> None:
        deadline = time.monotonic() + seconds
        while self._left(trackers_too=trackers_too) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _kill_descendants(self, *, trackers_too: bool) -> None:
        # A killed process maps its memory until it has had its turn, which takes seconds on a busy machine.
        deadline = time.monotonic() + 10.0
        while (left := self._left(trackers_too=trackers_too)) and time.monotonic() < deadline:
            for pid in left:
                _kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def remove_leftovers(self) -> None:
        """Remove what the server and its processes left in /dev/shm, unless somebody else uses it, and the scratch."""
        remove_shared_memory(self.job["engine_id"])
        left = {path for path in self.shared_memory if Path(path).exists()}
        if left:
            everybody = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
            for path in left - mapped_shared_memory(everybody, self.began):
                with contextlib.suppress(OSError):
                    Path(path).unlink()
        self.remove_scratch()

    def remove_scratch(self) -> None:
        """Remove the directories that were made for this server alone."""
        for path in self.job["scratch"]:
            shutil.rmtree(path, ignore_errors=True)

    def _reap(self) -> None:
        """Collect adopted orphans. The server is left to its Popen, which would otherwise lose the exit code."""
        assert self.server is not None
        with contextlib.suppress(ChildProcessError):
            while True:
                peek = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if peek is None:
                    return
                if peek.si_pid != self.server.pid:
                    os.waitpid(peek.si_pid, os.WNOHANG)
                elif self.server.poll() is None:
                    return


if __name__ == "__main__":
    sys.exit(Guard(json.loads(sys.stdin.readline())).run())
