"""Running pip inside an engine: its words as progress, its failures as causes. pip's own configuration is respected."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_kvoffload.engine.masking import mask_command, mask_text
from pytest_kvoffload.errors import ProvisionError

# pip ends with us even when we are killed outright: an orphan would go on writing into a folder that the next call
# rebuilds. Where prctl does not exist it goes on, as before.
_WRAPPER = """
import ctypes, os, runpy, signal, sys
try:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
except (OSError, AttributeError):
    pass
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit("the installing process is gone")
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_TAIL_LINES = 30


def run_pip(
    python: Path,
    words: Sequence[str],
    *,
    progress: Callable[[str], None],
    what: str,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run ``python -m pip WORDS`` and tell what it does.

    Raises:
        ProvisionError: pip failed; the message says why and what to do.
    """
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    # A user-wide "install into my home" setting is meaningless in a virtual environment, where pip refuses it.
    env |= {"PIP_USER": "no", "PYTHONUNBUFFERED": "1", **(environment or {})}
    command = [str(python), "-c", _WRAPPER, str(os.getpid()), *words]
    lines: deque[str] = deque(maxlen=_TAIL_LINES)
    teller = _Teller(progress, what)
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            text = line.rstrip()
            if text:
                lines.append(mask_text(text))
                teller.hear(text)
        code = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
    if code:
        shown = " ".join(mask_command(words))
        raise ProvisionError(explain_pip("\n".join(lines), code, command=f"pip {shown}"))


def explain_pip(text: str, code: int, *, command: str) -> str:
    """Turn the end of pip's output into one message: the cause, then what to do."""
    cause, remedy = "", ""
    missing = re.search(r"No matching distribution found for (\S+)", text)
    python = re.search(r"Requires-Python (\S+)", text)
    if re.search(r"No space left on device|Errno 28", text):
        cause, remedy = "the disk is full", "free some gigabytes, or point KVOFFLOAD_CACHE_DIR at another disk"
    elif re.search(r"ConnectionError|NewConnectionError|Temporary failure in name resolution|ProxyError", text):
        cause = "pip cannot reach its package index"
        remedy = "check network, proxy and pip's own configuration (pip config list)"
    elif missing and missing.group(1).startswith("torch==") and "+cpu" in missing.group(1):
        cause = f"pip finds no {missing.group(1)}: CPU builds of torch are not on the default package index"
        remedy = (
            "pass --extra-index-url with the address of PyTorch's CPU wheel index, or set it in pip's configuration"
        )
    elif missing and python:
        cause = f"{missing.group(1)} is not for this Python (it wants {python.group(1).rstrip(';')})"
        remedy = "pass --python with an interpreter of such a version"
    elif missing:
        cause, remedy = f"pip finds no {missing.group(1)}", "check the version, and pip's own configuration"
    elif conflict := re.search(r"^ERROR: (Cannot install .*|ResolutionImpossible.*)$", text, re.MULTILINE):
        cause = conflict.group(1)
    else:
        errors = re.findall(r"^(?:ERROR|error): (.*)$", text, re.MULTILINE)
        cause = errors[0] if errors else "it says no more"
    lines = "\n".join(f"    {line}" for line in text.splitlines()[-8:])
    message = f"pip failed (exit code {code}): {cause}"
    if remedy:
        message += f"\n  what to do: {remedy}"
    return f"{message}\n  command: {command}\n  last lines:\n{lines}"


class _Teller:
    """Makes progress lines of pip's output: names and sizes, elapsed time, no noise."""

    def __init__(self, progress: Callable[[str], None], what: str) -> None:
        self.progress, self.what = progress, what
        self.began = time.monotonic()
        self.last = 0.0
        self.packages = 0

    def hear(self, line: str) -> None:
        """Take one line of pip's."""
        word = line.strip().split(" ", 1)[0]
        if word == "Collecting":
            self.packages += 1
            self._say(f"resolving {line.split()[1]} (package {self.packages})", urgent=False)
        elif word == "Downloading" and " MB" in line:
            name = line.split()[1].rsplit("/", 1)[-1]
            size = re.search(r"\(([\d.]+ MB)\)", line)
            self._say(f"downloading {name}{f' ({size.group(1)})' if size else ''}", urgent=True)
        elif line.startswith("Installing collected packages"):
            self._say(f"unpacking {line.count(',') + 1} packages (a minute or so, silently)", urgent=True)
        elif line.startswith(("Successfully installed", "Successfully uninstalled")):
            self._say(line[:60] + ("..." if len(line) > 60 else ""), urgent=True)

    def _say(self, text: str, *, urgent: bool) -> None:
        now = time.monotonic() - self.began
        if urgent or now - self.last >= 2.0 or self.last == 0.0:
            self.last = now
            self.progress(f"{self.what}: {now:.0f} s, {text}")
