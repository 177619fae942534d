"""``kvoffload meters``: the three meters of a running vLLM, and what they say about its tier."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pytest_kvoffload.errors import ExitCode, ScrapeError, UsageError
from pytest_kvoffload.metrics.delta import delta
from pytest_kvoffload.metrics.fetch import get
from pytest_kvoffload.metrics.meters import Meters, read_meters
from pytest_kvoffload.metrics.report import Section, document, sections
from pytest_kvoffload.metrics.scrape import metrics_url, scrape
from pytest_kvoffload.metrics.verdict import Verdict, judge
from pytest_kvoffload.records import Snapshot

EXIT_CODES = {"helping": ExitCode.OK, "hurting": ExitCode.FAILED}
"""Every other word is inconclusive: it says nothing for the tier."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def build_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "exit code: 0 helping, 1 hurting, 3 no reuse / not needed / not exercised / unclear, 5 metrics unreadable. "
        "docs/meters.md says what each word means and on what evidence."
    )
    parser.add_argument("url", nargs="?", help="the server, http://host:8000 (or its metrics URL)")
    parser.add_argument(
        "--metrics-url",
        action="append",
        default=[],
        metavar="URL",
        help="another metrics URL to add up: further servers, or an LMCache server's (repeatable)",
    )
    parser.add_argument("--for", dest="window", default="60s", metavar="TIME", help="the window, 500ms 60s 2m 1h (60s)")
    parser.add_argument("--watch", action="store_true", help="one window after the other until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="one JSON document a window")
    parser.add_argument("--prometheus", metavar="URL", help="take the window from a Prometheus server instead")
    parser.add_argument(
        "--at", metavar="TIME", help="with --prometheus: end of the window, ISO 8601 or epoch seconds (now)"
    )
    parser.add_argument(
        "--selector", default="", metavar="MATCHERS", help='with --prometheus: label matchers, job="vllm",pod=~"a.*"'
    )
    parser.add_argument("--timeout", default="5s", metavar="TIME", help="for one scrape, everything together (5s)")


def run(args: argparse.Namespace) -> int:
    """Read the window or windows, print, and return the exit code of the last verdict."""
    _check(args)
    code: int = ExitCode.INCONCLUSIVE
    for meters, urls, complete in _windows(args):
        verdict = judge(meters)
        if args.json:
            print(json.dumps(document(meters, verdict, urls), indent=None if args.watch else 2), flush=True)
        else:
            _show(meters, verdict, urls)
        code = EXIT_CODES.get(verdict.word, ExitCode.INCONCLUSIVE) if complete else ExitCode.INTERRUPTED
    return code


def duration(text: str) -> float:
    """Parse ``500ms``, ``60s``, ``2m``, ``1h`` or plain seconds; more than zero.

    Raises:
        UsageError: anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text.strip())
    seconds = float(match.group(1)) * _UNITS[match.group(2) or "s"] if match else 0.0
    if seconds <= 0:
        raise UsageError(f"not a duration: {text!r}; write 500ms, 60s, 2m or 1h")
    return seconds


def instant(text: str) -> float:
    """Parse ISO 8601 (UTC where no offset is given) or epoch seconds into epoch seconds.

    Raises:
        UsageError: anything else.
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(f"not a time: {text!r}; write 2026-01-31T12:00:00+00:00 or epoch seconds") from None
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()


def _check(args: argparse.Namespace) -> None:
    if args.prometheus and (args.url or args.metrics_url or args.watch):
        raise UsageError("--prometheus reads a window that is over: it goes with no URL, --metrics-url or --watch")
    if not args.prometheus and (args.at or args.selector):
        raise UsageError("--at and --selector choose among a Prometheus server's series: they need --prometheus URL")
    if not args.prometheus and not (args.url or args.metrics_url):
        raise UsageError("which server? kvoffload meters http://host:8000 (or --metrics-url, or --prometheus)")
    duration(args.window)
    duration(args.timeout)


Window = tuple[Meters, tuple[str, ...], bool]


def _windows(args: argparse.Namespace) -> Iterator[Window]:
    if args.prometheus:
        yield _from_prometheus(args)
        return
    urls = tuple(metrics_url(url) for url in [*([args.url] if args.url else []), *args.metrics_url])
    timeout_seconds = duration(args.timeout)
    before = scrape(urls, timeout_seconds=timeout_seconds)
    _need_vllm(before)
    version = _version(urls[0], timeout_seconds)
    while True:
        complete = _wait(duration(args.window), quiet=args.json)
        after = scrape(urls, timeout_seconds=timeout_seconds)
        yield read_meters(delta(before, after), vllm_version=version), urls, complete
        if not (args.watch and complete):
            return
        before = after


def _from_prometheus(args: argparse.Namespace) -> Window:
    from dataclasses import replace

    from pytest_kvoffload.metrics.prometheus_api import snapshots_between

    end = instant(args.at) if args.at else time.time()
    before, after, notes = snapshots_between(
        args.prometheus,
        start_seconds=end - duration(args.window),
        end_seconds=end,
        selector=args.selector,
        timeout_seconds=duration(args.timeout),
    )
    meters = read_meters(delta(before, after), vllm_version=None)
    return replace(meters, caveats=(*meters.caveats, *notes)), (args.prometheus,), True


def _wait(seconds: float, *, quiet: bool) -> bool:
    """Sleep; Ctrl-C ends the window early, and what was measured until then is reported."""
    try:
        if quiet or not sys.stderr.isatty():
            time.sleep(seconds)
        else:
            _count_down(seconds)
    except KeyboardInterrupt:
        return False
    return True


def _count_down(seconds: float) -> None:
    end = time.monotonic() + seconds
    from pytest_kvoffload.output.progress import CommandProgress

    with CommandProgress() as progress:
        while (left := end - time.monotonic()) > 0:
            progress.line(f"reading for {seconds:g} s, {left:.0f} s to go (Ctrl-C ends the window now)")
            time.sleep(min(1.0, left))


def _need_vllm(snapshot: Snapshot) -> None:
    if any(name.startswith("vllm:") for name in snapshot.families):
        return
    raise ScrapeError(
        ", ".join(snapshot.urls),
        "a Prometheus exposition, but without vllm: metrics. Not a vLLM server, or one with --disable-log-stats",
    )


def _version(url: str, timeout_seconds: float) -> str | None:
    """Ask ``/version`` beside the metrics; a server that does not answer it only makes reasons less precise."""
    parts = urlsplit(url)
    try:
        reply = get(urlunsplit((parts.scheme, parts.netloc, "/version", "", "")), timeout_seconds=timeout_seconds)
        version: Any = json.loads(reply.body)["version"]
    except (ScrapeError, ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, str) else None


def _show(meters: Meters, verdict: Verdict, urls: tuple[str, ...]) -> None:
    version = f"vLLM {meters.vllm_version}" if meters.vllm_version else "vLLM"
    connector = meters.connector or "no KV connector seen"
    head = f"{version}, {connector}, {', '.join(urls)}, {meters.seconds:.3g} s"
    shown = sections(meters)
    if sys.stdout.isatty():
        _show_rich(head, shown, verdict)
    else:
        print("\n".join(_plain(head, shown, verdict)), flush=True)


def _plain(head: str, shown: tuple[Section, ...], verdict: Verdict) -> list[str]:
    width = max((len(row.label) for section in shown for row in section.rows), default=0)
    lines = [head]
    for section in shown:
        lines.append(section.title)
        for row in section.rows:
            lines.append(f"  {row.label:<{width}}  {row.value:>12}  {row.note}".rstrip())
    lines.append(f"verdict: {verdict.word}")
    lines.append(f"  {verdict.reason}")
    lines += [f"  limit: {limit}" for limit in verdict.limits]
    return lines


def _show_rich(head: str, shown: tuple[Section, ...], verdict: Verdict) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(head), show_header=False, box=None, title_justify="left", padding=(0, 2, 0, 0))
    for section in shown:
        table.add_row(Text(section.title, style="bold"))
        for row in section.rows:
            table.add_row(Text(f"  {row.label}"), Text(row.value, justify="right"), Text(row.note, style="dim"))
    style = {"helping": "green", "hurting": "red"}.get(verdict.word, "yellow")
    # Rich drops colours itself where NO_COLOR is set.
    console = Console(highlight=False)
    console.print(table)
    console.print(Text.assemble("verdict: ", (verdict.word, f"bold {style}")))
    console.print(Text(f"  {verdict.reason}"))
    for limit in verdict.limits:
        console.print(Text(f"  limit: {limit}", style="dim"))
