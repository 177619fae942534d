"""``kvoffload rules``: the table of the lint rules, or the page of one."""

from __future__ import annotations

import argparse

from pytest_kvoffload.errors import ExitCode


def build_parser(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("rule", nargs="?", metavar="CODE", help="a code, a prefix of codes, or a name: show the pages")
    parser.add_argument("--format", choices=["text", "markdown", "json"], default="text", help="of the table")


def run(args: argparse.Namespace) -> int:
    """Print the table or the pages."""
    from pytest_kvoffload.lint.registry import entries, resolve
    from pytest_kvoffload.output import lint_rules

    if args.rule:
        codes = sorted(resolve([args.rule], "kvoffload rules"))
        print("\n\n".join(lint_rules.page(entries()[code]) for code in codes))
        return ExitCode.OK
    chosen = list(entries().values())
    renderers = {"text": lint_rules.table, "markdown": lint_rules.markdown, "json": lint_rules.as_json}
    print(renderers[args.format](chosen), end="")
    return ExitCode.OK
