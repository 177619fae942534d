"""From the log of a server that did not start, died or runs without its tier to the first cause.

The last line of such a log is a consequence ("Engine core initialization failed. See root cause above"). The cause
is the earliest line of any of the processes that says something the catalog knows (``catalog/failures.toml``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pytest_kvoffload.catalog.failures import Failure, FailureKind, FailureMatch, compiled, load_failures
from pytest_kvoffload.engine.masking import MASK, is_secret_name, mask_text
from pytest_kvoffload.engine.postmortem_log import LogLine, ParsedLog, Traceback, parse_log

UNKNOWN = "unknown"
_QUIET_LEVELS = frozenset({"DEBUG", "INFO", "WARNING"})
# What vLLM's processes say about each other's end: never a cause.
_CONSEQUENCE = re.compile(
    r"See (?:root cause|stack trace) (?:above|for root cause)|See stack trace \(above\)|EngineDeadError|"
    r"WorkerProc initialization failed|Executor failed|^SystemExit|^KeyboardInterrupt|CancelledError|"
    r"engine core exited unexpectedly|BrokenPipeError|died unexpectedly|Worker failed with error"
)
_ENGINE_GONE = re.compile(r"EngineDeadError|engine core exited unexpectedly")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
# "key": "value", key=value, --flag value: whether the name is that of a secret is decided by masking.py.
_PAIR = re.compile(r"""(?P<name>[A-Za-z_][\w.-]*)(?P<between>['"]?\s*[:=]\s*['"]?|\s+)(?P<value>[^'",\s}\])]+)""")
_MAX_LINES = 20
_MAX_CAUSE = 400
_TRACEBACK_TAIL = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a server did not start, died, or runs without its tier."""

    cls: str
    """A class of ``catalog/failures.toml``, ``killed``, ``stopped`` or ``unknown``."""
    cause: str
    """One line."""
    remedy: str
    lines: tuple[str, ...]
    """The log lines that show it, secrets masked."""
    known: bool
    """Whether the cause is one of the catalog; ``False`` says that ``lines`` is merely the first error block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hit:
    failure: Failure
    match: FailureMatch
    line: LogLine
    groups: dict[str, str]
    traceback: Traceback | None


def diagnose(log_text: str, *, exit_code: int | None = None) -> Diagnosis:
    """Find the first cause of a failed boot or a dead server.

    Args:
        log_text: the server's output, all processes in one stream (colour codes allowed).
        exit_code: of the server's first process; negative for a signal, as :mod:`subprocess` has it, or 128 plus
            the signal, as a shell has it. ``None`` when it is not known or the server still runs.

    Returns:
        The earliest cause in the log that the catalog knows; without one what the exit code says; without that
        the first error block, with ``known`` false. A degraded tier is reported when nothing ended the server.
    """
    log = parse_log(log_text)
    for kind in ("cause", "fallback"):
        if hit := _first_hit(log, kind):
            return _from_hit(log, hit)
    if killed := _killed_engine(log):
        return killed
    block = _first_error_traceback(log)
    by_signal = _from_exit_code(log, exit_code)
    if by_signal is not None and (by_signal.known or not block):
        return by_signal
    if not block and (hit := _first_degraded(log)):
        return _from_hit(log, hit)
    block = block or _first_error_lines(log)
    if block:
        exceptions = {traceback.exception for traceback in log.tracebacks}
        shown = next((line for line in block if line in exceptions), block[0]).text.strip()
        return Diagnosis(
            cls=UNKNOWN,
            cause=_one_line(f"not a cause that is known here; the first error of the log is: {shown}"),
            remedy="read the lines below and the log around them; they are the first error block of any process",
            lines=_show(block),
            known=False,
        )
    if hit := _first_hit(log, "warning"):
        return _from_hit(log, hit)
    return _nothing_found(log, exit_code)


def degraded(log_text: str) -> Diagnosis | None:
    """Say whether a live server runs without its tier, though ``/health`` answers 200.

    Returns:
        The first sign of LMCache's degraded mode that no later line takes back, or ``None``.
    """
    log = parse_log(log_text)
    hit = _first_degraded(log)
    return _from_hit(log, hit) if hit else None


def _hits(log: ParsedLog, kind: FailureKind) -> Iterator[_Hit]:
    failures = [failure for failure in load_failures().failure if failure.kind == kind]
    previous: dict[str, LogLine] = {}
    for line in log.lines:
        if not line.frame and line.text and (kind in {"degraded", "warning"} or line.level not in _QUIET_LEVELS):
            for failure in failures:
                if hit := _match(log, failure, line, previous.get(line.process)):
                    yield hit
                    break
        previous[line.process] = line


def _match(log: ParsedLog, failure: Failure, line: LogLine, previous: LogLine | None) -> _Hit | None:
    for match in failure.match:
        found = compiled(match.pattern).search(line.text)
        if found is None:
            continue
        groups = {name: value for name, value in found.groupdict().items() if value is not None}
        if match.before is not None:
            before = compiled(match.before).search(previous.text.strip()) if previous else None
            if before is None:
                continue
            groups |= {name: value for name, value in before.groupdict().items() if value is not None}
        traceback = log.traceback_of(line)
        if match.within is not None and not (traceback and compiled(match.within).search(traceback.text)):
            continue
        return _Hit(failure=failure, match=match, line=line, groups=groups, traceback=traceback)
    return None


def _first_hit(log: ParsedLog, kind: FailureKind) -> _Hit | None:
    return next(_hits(log, kind), None)


def _first_degraded(log: ParsedLog) -> _Hit | None:
    for hit in _hits(log, "degraded"):
        recovery = hit.match.recovery
        if recovery is None or not any(
            compiled(recovery).search(line.text) for line in log.lines[hit.line.number + 1 :]
        ):
            return hit
    return None


class _Groups(dict[str, str]):
    """A group that did not take part in a match is said to be missing, never an error in an error's report."""

    def __missing__(self, key: str) -> str:
        return "(not said)"


def _from_hit(log: ParsedLog, hit: _Hit) -> Diagnosis:
    traceback = hit.traceback
    if traceback is None and hit.failure.kind == "degraded":
        # LMCache logs why it gave up as a traceback within, or right after, the line that says so.
        traceback = next((t for t in log.tracebacks if t.exception.number >= hit.line.number), None)
    groups = _Groups(hit.groups)
    if traceback is not None and (frame := _last_frame(traceback)):
        groups["at"] = frame
    cause = hit.match.cause.format_map(groups).strip()
    if hit.failure.kind == "degraded" and traceback is not None:
        cause += f" ({traceback.exception.text.strip()})"
    shown = (hit.line,) if traceback is None else _tail(traceback)
    if hit.line not in shown:
        shown = (hit.line, *shown)
    return Diagnosis(cls=hit.failure.cls, cause=_mask(cause), remedy=hit.failure.remedy, lines=_show(shown), known=True)


def _last_frame(traceback: Traceback) -> str | None:
    for line in reversed(traceback.lines):
        if found := _FRAME.match(line.text):
            name = found["file"].rpartition("site-packages/")[2]
            return f"{name}:{found['line']} ({found['function']})"
    return None


def _tail(traceback: Traceback) -> tuple[LogLine, ...]:
    """Return the innermost frames and the exception with its text: what a reader looks at first."""
    at = traceback.lines.index(traceback.exception)
    return traceback.lines[max(0, at - _TRACEBACK_TAIL) :]


def _is_opening(line: LogLine) -> bool:
    return line.text.rstrip().endswith("Traceback (most recent call last):")


def _first_error_traceback(log: ParsedLog) -> tuple[LogLine, ...]:
    """Return the end of the first traceback that is not a mere consequence, with the error that announces it."""
    degraded_lines = {hit.line.number for hit in _hits(log, "degraded")}
    for traceback in log.tracebacks:
        opening = traceback.lines[0]
        if traceback.exception.level in _QUIET_LEVELS or _CONSEQUENCE.search(traceback.exception.text):
            continue
        if degraded_lines & {opening.number, opening.number - 1}:
            continue  # why the tier was given up: the server went on without it
        before = (line for line in reversed(log.lines[: opening.number]) if line.process == opening.process)
        first = next(before, None)
        if first is not None and first.level in {"ERROR", "CRITICAL"}:
            return (first, *_tail(traceback))
        return _tail(traceback)
    return ()


def _first_error_lines(log: ParsedLog) -> tuple[LogLine, ...]:
    """Return the first lines that one process logged as an error."""
    for line in log.lines:
        if line.level in {"ERROR", "CRITICAL"} and line.text.strip() and not _CONSEQUENCE.search(line.text):
            following = log.lines[line.number + 1 : line.number + _MAX_LINES]
            return (line, *(more for more in following if more.process == line.process and more.level == line.level))
    return ()


def _killed_engine(log: ParsedLog) -> Diagnosis | None:
    """Say that the engine was killed where only the API server has something to say about its end."""
    shown = [line for line in log.lines if _ENGINE_GONE.search(line.text) and not line.frame]
    if not shown or any(_spoke(line) for line in log.lines):
        return None
    return Diagnosis(
        cls="host-memory",
        cause="the engine's process is gone and wrote no error of its own: it was killed, most often by the kernel's "
        "out-of-memory killer or the container's memory limit",
        remedy=load_failures().by_class("host-memory").remedy,
        lines=_show(shown[:5]),
        known=True,
    )


def _spoke(line: LogLine) -> bool:
    """Whether the engine or a worker reported an error, or a traceback has no process that owns it."""
    if line.process.startswith(("EngineCore", "Worker", "VllmWorker")):
        return line.level in {"ERROR", "CRITICAL"} or _is_opening(line)
    return not line.process and _is_opening(line) and line.level not in _QUIET_LEVELS


def _from_exit_code(log: ParsedLog, exit_code: int | None) -> Diagnosis | None:
    if exit_code is None:
        return None
    number = -exit_code if exit_code < 0 else exit_code - 128 if 128 < exit_code < 160 else 0
    tail = _show([line for line in log.lines if line.text.strip()][-5:])
    if number == 9:
        return Diagnosis(
            cls="host-memory",
            cause="the server was killed (SIGKILL) without an error of its own: most often the kernel's out-of-memory "
            "killer or the container's memory limit",
            remedy=load_failures().by_class("host-memory").remedy,
            lines=tail,
            known=True,
        )
    if number == 7:
        return Diagnosis(
            cls="shm-too-small",
            cause="the server was ended by SIGBUS: a page of /dev/shm could not be had, so it is too small or full",
            remedy=load_failures().by_class("shm-too-small").remedy,
            lines=tail,
            known=True,
        )
    if number in {4, 6, 8, 11}:
        return Diagnosis(
            cls="native-crash",
            cause=f"the server crashed in compiled code (signal {number})",
            remedy=load_failures().by_class("native-crash").remedy,
            lines=tail,
            known=True,
        )
    if number in {1, 2, 15}:
        return Diagnosis(
            cls="stopped",
            cause=f"the server was stopped from outside (signal {number})",
            remedy="nothing is wrong with the server; find what stopped it (a time-out, a cancelled job)",
            lines=tail,
            known=False,
        )
    return None


def _nothing_found(log: ParsedLog, exit_code: int | None) -> Diagnosis:
    said = [line for line in log.lines if line.text.strip()]
    consequence = next((line for line in said if _CONSEQUENCE.search(line.text)), None)
    code = "" if exit_code is None else f", exit code {exit_code}"
    if consequence is not None:
        cause = f"a process of the server ended without an error of its own{code}; it may have been killed"
        lines = [consequence]
    else:
        cause = f"no error in the log{code}" if said else f"the log is empty{code}"
        lines = said[-5:]
    return Diagnosis(
        cls=UNKNOWN,
        cause=cause,
        remedy="look for an out-of-memory kill (dmesg, the container's events), then run the server's command by hand",
        lines=_show(lines),
        known=False,
    )


def _mask(text: str) -> str:
    return mask_text(_PAIR.sub(_masked_pair, text))


def _one_line(text: str) -> str:
    masked = _mask(text)
    return masked if len(masked) <= _MAX_CAUSE else masked[: _MAX_CAUSE - 4] + " ..."


def _masked_pair(found: re.Match[str]) -> str:
    if not is_secret_name(found["name"]):
        return found[0]
    # Without ":" or "=" it is a secret only as a flag's value: prose may speak of an access key.
    if found["between"].isspace() and found.string[max(0, found.start() - 2) : found.start()] != "--":
        return found[0]
    return f"{found['name']}{found['between']}{MASK}"


def _show(lines: Iterable[LogLine]) -> tuple[str, ...]:
    return tuple(_mask(line.raw) for line in lines)[:_MAX_LINES]
