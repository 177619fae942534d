"""Every error that the project raises on purpose, and the exit codes of its commands.

The message of each error is written for the person who reads the red check: it names what was seen, what was
expected and what to do. No module raises a bare ``Exception`` or lets a library's error escape unexplained.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

__all__ = [
    "BootError",
    "ConfigError",
    "EngineError",
    "ExitCode",
    "IncomparableError",
    "KVOffloadError",
    "LintError",
    "MissingExtraError",
    "PreflightError",
    "ProvisionError",
    "ReadinessTimeoutError",
    "ScrapeError",
    "ServerDiedError",
    "SizingError",
    "TierDegradedError",
    "UsageError",
    "WorkloadError",
    "did_you_mean",
]


class ExitCode(IntEnum):
    """Exit codes of the ``kvoffload`` command; ``kvoffload --help`` prints this table."""

    OK = 0
    """The command did its job, and what it judged is good."""
    FAILED = 1
    """What was judged is bad: lint errors, a failed threshold, a tier that does not help."""
    USAGE = 2
    """Bad arguments or a configuration that cannot be read."""
    INCONCLUSIVE = 3
    """Nothing could be concluded: too few samples, incomparable arms, a tier never reached."""
    ENGINE = 4
    """An engine could not be provisioned, did not boot or died."""
    SCRAPE = 5
    """Metrics could not be read."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C or SIGTERM; what was measured until then was reported."""


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return ``" (did you mean 'x'?)"`` for the closest known word, or an empty string."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]!r}?)" if close else ""


class KVOffloadError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code: ExitCode = ExitCode.FAILED


class UsageError(KVOffloadError):
    """Arguments that make no sense together."""

    exit_code = ExitCode.USAGE


class MissingExtraError(UsageError):
    """A feature needs an optional extra that is not installed."""

    def __init__(self, feature: str, extra: str, package: str) -> None:
        super().__init__(
            f"{feature} needs the package {package!r}, which is not installed: pip install 'pytest-kvoffload[{extra}]'"
        )
        self.extra = extra


class ConfigError(UsageError):
    """A value in ``kvoffload.toml``, ``[tool.kvoffload]``, a mark or an option is wrong.

    Args:
        section: where it stands, such as ``connectors.native`` or ``@pytest.mark.kvoffload``.
        key: the key, or ``None`` when the section itself is wrong.
        got: what was found, already rendered.
        expected: what is legal there.
        source: the file, when there is one.
        hint: the closest legal spelling, or what to do.
    """

    def __init__(
        self,
        *,
        section: str,
        key: str | None = None,
        got: str | None = None,
        expected: str,
        source: str | None = None,
        hint: str = "",
    ) -> None:
        where = f"[{section}]" + (f" {key}" if key else "")
        text = f"{source}: {where}" if source else where
        if got is not None:
            text += f": got {got}"
        text += f"; expected {expected}{hint}"
        super().__init__(text)
        self.section, self.key, self.got, self.expected, self.source = section, key, got, expected, source


class SizingError(UsageError):
    """A model configuration whose KV bytes cannot be computed; the message names the key."""


class ScrapeError(KVOffloadError):
    """A metrics endpoint could not be read: refused, timed out, truncated, too large, not an exposition."""

    exit_code = ExitCode.SCRAPE

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"cannot read metrics from {url}: {reason}")
        self.url, self.reason = url, reason


class WorkloadError(KVOffloadError):
    """The workload cannot be planned or driven as asked (does not fit, reset refused, stores never settled)."""

    exit_code = ExitCode.INCONCLUSIVE


class IncomparableError(KVOffloadError):
    """Two measurements differ in something that makes a comparison meaningless."""

    exit_code = ExitCode.INCONCLUSIVE


class LintError(UsageError):
    """A configuration that the linter refuses was about to be booted."""


class EngineError(KVOffloadError):
    """Base of everything that goes wrong with a server under test."""

    exit_code = ExitCode.ENGINE


class ProvisionError(EngineError):
    """The managed engine could not be installed, or what is installed is broken."""


class PreflightError(EngineError):
    """A boot that cannot succeed was refused before it cost minutes."""


class BootError(EngineError):
    """The server died before it was ready.

    Args:
        cause: the first cause found in the log, one line.
        command: the command line, secrets masked.
        log_path: where the whole log lies.
        tail: the last lines of the log.
        remedy: what to do about it, when the cause is known.
    """

    def __init__(self, *, cause: str, command: str, log_path: str, tail: str, remedy: str = "") -> None:
        text = f"the server did not start: {cause}"
        if remedy:
            text += f"\n  what to do: {remedy}"
        text += f"\n  command: {command}\n  log: {log_path}"
        if tail:
            text += "\n  last lines:\n" + "\n".join(f"    {line}" for line in tail.splitlines())
        super().__init__(text)
        self.cause, self.command, self.log_path, self.tail, self.remedy = cause, command, log_path, tail, remedy


class ReadinessTimeoutError(BootError):
    """The server neither died nor became ready in time; ``cause`` says what was being waited for."""


class ServerDiedError(EngineError):
    """A server that had been ready is gone; the message names the first cause found in its log."""


class TierDegradedError(EngineError):
    """The server answers, but its tier has given up; the message names the first cause found in its log."""
