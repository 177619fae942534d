"""``kvoffload lint``: finds KV-offload mistakes in files, for the version that they run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_kvoffload.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from pytest_kvoffload.lint.run import FileResult, Options, Report

FORMATS = ("text", "json", "github", "sarif", "junit")
EPILOG = """\
exit codes: 0 no finding of error level, 1 at least one, 2 bad arguments.
A finding is ignored by "# kvoffload: ignore[CODE] reason" on its line or alone on the line above.
kvoffload rules lists the rules, kvoffload rules CODE shows the page of one."""


class _Pair(argparse.Action):
    """Collects ``--format F --output PATH`` pairs in the order they are given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        pairs: list[tuple[str, str | None]] = list(getattr(namespace, "reports", None) or [])
        if self.dest == "format":
            pairs.append((str(values), None))
        elif pairs and pairs[-1][1] is None:
            pairs[-1] = (pairs[-1][0], str(values))
        else:
            pairs.append(("text", str(values)))
        namespace.reports = pairs


def build_parser(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="files and directories (default: .); - reads standard input")
    add(
        "--select",
        action="append",
        metavar="RULES",
        help="only these: codes, prefixes (KVO5) or names, comma-separated",
    )
    add("--ignore", action="append", metavar="RULES", help="not these")
    add("--severity", choices=["error", "warning", "note"], default="warning", help="lowest level to report (warning)")
    add("--pedantic", action="store_true", help="also opt-in rules; implies --severity note")
    add("--vllm-version", metavar="X.Y.Z", help="vLLM that runs these files; wins over what they say")
    add("--lmcache-version", metavar="X.Y.Z", help="the same for LMCache")
    add("--markdown", action="store_true", help="also read the code blocks of Markdown files")
    add("--helm", action="store_true", help="render charts with helm template when helm is installed")
    add("--format", choices=FORMATS, action=_Pair, help="of the report; repeat with --output for several (text)")
    add("--output", metavar="FILE", action=_Pair, help="where the --format before it goes (standard output)")
    add("--stdin-filename", metavar="NAME", default="stdin.sh", help="name that chooses the reader of standard input")
    add("--fix", action="store_true", help="apply the mechanical fixes")
    add("--diff", action="store_true", help="with --fix: show them and change nothing")


def run(args: argparse.Namespace) -> int:
    """Lint, write the reports, and return the exit code."""
    options = _options(args)
    reports: list[tuple[str, str | None]] = getattr(args, "reports", None) or [("text", None)]
    if args.diff and not args.fix:
        raise UsageError("--diff needs --fix: it shows what --fix would change")
    if sum(1 for _, path in reports if path is None) > 1:
        raise UsageError("only one --format can go to standard output: give the others --output FILE")
    paths = args.paths or ["."]
    if "-" in paths and len(paths) > 1:
        raise UsageError("- cannot be mixed with other paths")
    report = _lint(paths, args.stdin_filename, options)
    if args.fix:
        report = _fix(report, options, show_only=args.diff, stdin="-" in paths)
        if args.diff or "-" in paths:
            return ExitCode.FAILED if report.count("error") else ExitCode.OK
    for name, path in reports:
        _write(name, path, report)
    return ExitCode.FAILED if report.count("error") else ExitCode.OK


def _options(args: argparse.Namespace) -> Options:
    from packaging.version import InvalidVersion, Version

    from pytest_kvoffload.lint.registry import resolve
    from pytest_kvoffload.lint.run import Options

    for name in ("vllm_version", "lmcache_version"):
        text = getattr(args, name)
        try:
            Version((text or "0").lstrip("v"))
        except InvalidVersion:
            raise UsageError(f"--{name.replace('_', '-')}: {text!r} is no version such as 0.32.0") from None
    select = _words(args.select)
    return Options(
        select=resolve(select, "--select") if select else None,
        ignore=resolve(_words(args.ignore), "--ignore"),
        severity="note" if args.pedantic else args.severity,
        pedantic=args.pedantic,
        vllm_version=args.vllm_version,
        lmcache_version=args.lmcache_version,
        markdown=args.markdown,
        helm=args.helm,
    )


def _words(values: list[str] | None) -> list[str]:
    return [word.strip() for value in values or [] for word in value.split(",") if word.strip()]


def _lint(paths: list[str], stdin_name: str, options: Options) -> Report:
    from pytest_kvoffload.lint.run import Report
    from pytest_kvoffload.lint.walk import Found, files

    if paths == ["-"]:
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
        return Report(files=(_file(stdin_name, text, options),), seen=1)
    found = Found()
    results = []
    for path, content in files(paths, found, markdown=options.markdown):
        results.append(_file(path, content.decode("utf-8", "replace"), options))
    return Report(files=tuple(results), skipped=tuple(found.skipped), seen=found.seen)


def _file(path: str, text: str, options: Options) -> FileResult:
    from dataclasses import replace

    from pytest_kvoffload.lint.run import lint_document
    from pytest_kvoffload.lint.sources import read

    return replace(lint_document(read(path, text, markdown=options.markdown, helm=options.helm), options), text=text)


def _fix(report: Report, options: Options, *, show_only: bool, stdin: bool) -> Report:
    """Apply or show the fixes and return the report of what is left."""
    from dataclasses import replace

    from pytest_kvoffload.lint.fix import apply_fixes, diff

    left, total = [], 0
    for file in report.files:
        fixed, count = apply_fixes(file.text, file.diagnostics)
        total += count
        if show_only:
            if count:
                sys.stdout.write(diff(file.path, file.text, fixed))
            left.append(file)
            continue
        if stdin:
            sys.stdout.write(fixed)
        elif count and not _write_back(file.path, file.text, fixed):
            print(f"kvoffload lint: {file.path} is not UTF-8, or changed meanwhile: not fixed", file=sys.stderr)
            total -= count
            left.append(file)
            continue
        left.append(_file(file.path, fixed, options) if count else file)
    print(f"{'would fix' if show_only else 'fixed'} {total} finding{'s' if total != 1 else ''}", file=sys.stderr)
    return replace(report, files=tuple(left))


def _write_back(path: str, before: str, after: str) -> bool:
    """Write a fixed file, only over exactly the text that was linted (undecodable bytes would be lost)."""
    target = Path(path)
    if target.read_bytes() != before.encode("utf-8", "surrogateescape"):
        return False
    target.write_bytes(after.encode("utf-8"))
    return True


def _write(name: str, path: str | None, report: Report) -> None:
    text = _render(name, report, colour=path is None and sys.stdout.isatty())
    if path is None:
        sys.stdout.write(text)
        return
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {path}: {error.strerror}") from error


def _render(name: str, report: Report, *, colour: bool) -> str:
    from pytest_kvoffload.output import lint_github, lint_json, lint_junit, lint_sarif, lint_text

    if name == "text":
        return lint_text.render(report, colour=colour)
    renderers = {
        "json": lint_json.render,
        "github": lint_github.render,
        "junit": lint_junit.render,
        "sarif": lint_sarif.render,
    }
    return renderers[name](report)
