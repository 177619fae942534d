"""Reading a server's log: the last lines, and why it failed."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_kvoffload.errors import TierDegradedError

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"^(\([A-Za-z_]+[^)]*pid=\d+\)\s*)+")
TAIL_BYTES = 64 * 1024


def read_log(path: Path, *, limit_bytes: int = 8 * 1024 * 1024) -> str:
    """Return the log's text without colours (its last ``limit_bytes``), empty when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit_bytes))
            raw = file.read()
    except OSError:
        return ""
    return _ANSI.sub("", raw.decode("utf-8", "replace"))


def tail(path: Path, lines: int = 20) -> str:
    """Return the last lines of the log, empty lines left out."""
    kept = [line.rstrip() for line in read_log(path, limit_bytes=TAIL_BYTES).splitlines() if line.strip()]
    return "\n".join(kept[-lines:])


def last_line(path: Path, width: int = 100) -> str:
    """Return the last line of the log without vLLM's prefixes, cut to ``width`` characters."""
    kept = tail(path, 1)
    line = _PREFIX.sub("", kept)
    line = re.sub(r"^[A-Z]+\s+\d\d-\d\d\s+[\d:.]+\s+(?:\[[^\]]*\]\s*)?", "", line)
    return line if len(line) <= width else line[: width - 3] + "..."


def explain(path: Path, *, exit_code: int | None) -> tuple[str, str]:
    """Return cause and remedy of a failure, from its log; both may be empty."""
    from pytest_kvoffload.engine.postmortem import diagnose

    text = read_log(path)
    if not text.strip():
        return "", ""
    found = diagnose(text, exit_code=exit_code)
    return found.cause, found.remedy


def known_cause(path: Path) -> tuple[str, str] | None:
    """Return cause and remedy of a failure that the catalog knows, found in the log of a process that still runs."""
    from pytest_kvoffload.catalog.failures import load_failures
    from pytest_kvoffload.engine.postmortem import diagnose

    found = diagnose(read_log(path))
    causes = [failure.cls for failure in load_failures().failure if failure.kind == "cause"]
    return (found.cause, found.remedy) if found.known and found.cls in causes else None


def tier_given_up(path: Path, *, server: str) -> TierDegradedError | None:
    """Return the error to raise when a live server's log says that it runs without its tier.

    Such a server answers, and ``/health`` is 200: its log is the only one to tell.
    """
    from pytest_kvoffload.engine.postmortem import degraded

    found = degraded(read_log(path))
    if found is None:
        return None
    shown = "\n".join(f"    {line}" for line in found.lines)
    return TierDegradedError(
        f"{server} runs without its tier: {found.cause}\n  what to do: {found.remedy}\n  log: {path}\n{shown}"
    )
