"""A vLLM server log, taken apart: which process wrote a line, what it says, which traceback it belongs to.

vLLM runs an API server, an EngineCore and one worker a rank; all of them write to one stream, so their tracebacks
interleave. A line of theirs looks like ``(EngineCore pid=12) ERROR 11-29 17:15:14 [core.py:1100] text``; the header
is absent where a traceback is printed by the interpreter itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PROCESS = re.compile(r"^\((?P<process>[A-Za-z][^()=]*? pid=\d+)\) ?")
_VLLM_HEADER = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[(?P<where>[^\]]*)\] ?"
    r"(?P<text>.*)$"
)
_LMCACHE_HEADER = re.compile(
    r"^\[[\d-]+ [\d:,]+\] LMCache (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL): ?(?P<text>.*)$"
)
_UVICORN_HEADER = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL): +(?P<text>.*)$")
# vLLM prints whole configurations in one line; what names a cause stands at the front.
_MAX_LINE = 4000
_TRACEBACK = "Traceback (most recent call last):"
# "pkg.mod.SomeError: text" or a bare "AssertionError": where the frames of a traceback end.
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of the log. ``text`` has neither process prefix nor header; ``raw`` has no colour codes."""

    number: int
    """Position in the log, from 0."""
    raw: str
    text: str
    process: str
    """``"EngineCore pid=12"``, or an empty string for a line without prefix."""
    level: str | None
    where: str | None = None
    """``"core.py:1100"``, the place of the log call: all lines of one record have the same."""
    frame: bool = False
    """Whether it is a frame or a source line of a traceback: quoted code, never a statement about this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traceback:
    """One traceback of one process, with the lines of its exception."""

    lines: tuple[LogLine, ...]
    exception: LogLine
    """The line that names the exception."""

    @property
    def text(self) -> str:
        """All lines, frames included, as one text."""
        return "\n".join(line.text for line in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedLog:
    """All lines in order, and the tracebacks in the order in which their exceptions were written."""

    lines: tuple[LogLine, ...]
    tracebacks: tuple[Traceback, ...]

    def traceback_of(self, line: LogLine) -> Traceback | None:
        """Return the traceback that the line belongs to, if any."""
        for traceback in self.tracebacks:
            if traceback.lines[0].number <= line.number <= traceback.lines[-1].number and line in traceback.lines:
                return traceback
        return None


class _Stream:
    """What one process is in the middle of: nothing, the frames of a traceback, or its exception's text."""

    __slots__ = ("block", "exception", "state")

    def __init__(self) -> None:
        self.state = "idle"
        self.block: list[LogLine] = []
        self.exception: LogLine | None = None

    def close(self) -> Traceback | None:
        done = None
        if self.exception is not None:
            done = Traceback(lines=tuple(self.block), exception=self.exception)
        self.state, self.block, self.exception = "idle", [], None
        return done


def _split(number: int, raw: str) -> LogLine:
    raw = _ANSI.sub("", raw[: 2 * _MAX_LINE]).rstrip("\r\n")[:_MAX_LINE]
    process, rest, level, where = "", raw, None, None
    if match := _PROCESS.match(raw):
        process, rest = match["process"], raw[match.end() :]
    if header := _VLLM_HEADER.match(rest) or _LMCACHE_HEADER.match(rest) or _UVICORN_HEADER.match(rest):
        level, rest, where = header["level"], header["text"], header.groupdict().get("where")
    return LogLine(number=number, raw=raw, text=rest, process=process, level=level, where=where)


def parse_log(text: str | Iterable[str]) -> ParsedLog:
    """Take a log apart. Never fails: what it does not understand is a line without process and level."""
    rows = text.split("\n") if isinstance(text, str) else text
    lines: list[LogLine] = []
    tracebacks: list[Traceback] = []
    streams: dict[str, _Stream] = {}
    for number, raw in enumerate(rows):
        line = _split(number, raw)
        stream = streams.setdefault(line.process, _Stream())
        if line.text.rstrip().endswith(_TRACEBACK):
            if finished := stream.close():
                tracebacks.append(finished)
            stream.state, stream.block = "frames", [line]
        elif stream.state == "frames":
            if line.text[:1].isspace() or not line.text:
                line = replace(line, frame=True)
                stream.block.append(line)
            elif _EXCEPTION.match(line.text):
                stream.state, stream.exception = "exception", line
                stream.block.append(line)
            elif line.level is not None and line.level not in {"ERROR", "CRITICAL"}:
                pass  # another logger of the same process in between
            else:
                stream.close()
        elif stream.state == "exception":
            # The text of an exception may have several lines; the header of another record ends it.
            opening = stream.block[0]
            same_record = (line.level, line.where) == (opening.level, opening.where)
            continues = same_record and not _EXCEPTION.match(line.text)
            if continues and line.text and not line.text.startswith(("During handling", "The above exception")):
                stream.block.append(line)
            elif finished := stream.close():
                tracebacks.append(finished)
        lines.append(line)
    tracebacks.extend(done for stream in streams.values() if (done := stream.close()))
    tracebacks.sort(key=lambda traceback: traceback.exception.number)
    return ParsedLog(lines=tuple(lines), tracebacks=tuple(tracebacks))
