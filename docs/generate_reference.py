"""Write ``docs/reference.md`` from the code: ``python docs/generate_reference.py``. A test compares the two.

Nothing about an option, a fixture, a field or a kind is written here: names, types, defaults and sentences are read
from the registries, the parsers and the docstrings that the program itself uses.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reference_sources import (
    Field,
    Recorder,
    docstring_table,
    fields_of,
    first_paragraph,
    fixtures,
    parameters,
    tree_of,
)

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pytest_kvoffload"
PAGE = ROOT / "docs" / "reference.md"
COMMAND = "python docs/generate_reference.py"

CONFIGURATION = {"model": "ModelConfig", "engine": "EngineConfig", "workload": "WorkloadConfig"}
"""Sections of the configuration whose keys are the fields of a record."""
VARIABLES = {
    "KVOFFLOAD_API_KEY": "bearer token for a server that wants one; `VLLM_API_KEY` is read too. Never written anywhere",
    "KVOFFLOAD_CACHE_DIR": "where the managed engines and the test models lie; default: the user's cache directory",
    "KVOFFLOAD_DEVICE_LOCK": "seconds that a run waits for another one that uses the same device, or `off`",
    "KVOFFLOAD_INSIST": "`1`: boot although preflight says that it cannot succeed",
}
"""What the environment variables mean; that these are all there are is checked against the code."""


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


def page() -> str:
    """Return the whole page."""
    parts = [
        "# Reference",
        f"Generated from the code by `{COMMAND}`; a test fails when it is out of date.",
        *pytest_side(),
        *assertions(),
        *configuration(),
        *thresholds(),
        *commands(),
        *exit_codes(),
        *rules(),
        *json_fields(),
        *environment(),
    ]
    return "\n\n".join(parts) + "\n"


# ------------------------------------------------------------------------------------------------- sections
def pytest_side() -> Iterator[str]:
    """Options, ini keys, the mark and the fixtures."""
    from pytest_kvoffload import options, plugin

    recorder = Recorder()
    options.add_options(recorder)  # type: ignore[arg-type]
    yield "## pytest options"
    yield table(
        ("option", "what it does"),
        (
            (f"`{_usage(words, given)}`", given["help"] % {} if "%" in given["help"] else given["help"])
            for words, given in recorder.options
        ),
    )
    yield "## pytest ini keys"
    yield table(("key", "what it says"), ((f"`{name}`", text) for name, text in recorder.ini))
    yield "## The mark"
    yield f"`@pytest.mark.{options.MARK_LINE.partition(':')[0]}`: {options.MARK_LINE.partition(':')[2].strip()}."
    yield table(
        ("keyword", "type", "default", ""),
        (_row(field) for field in fields_of(PACKAGE / "options.py", "MarkOptions")),
    )
    yield "## Fixtures"
    yield table(("fixture", "scope", "gives", "what it is"), fixtures(PACKAGE / "fixtures.py", plugin.__all__))


def assertions() -> Iterator[str]:
    """Signatures and first sentences of everything called ``assert_*``."""
    import pytest_kvoffload

    yield "## Assertions"
    yield "What each asks, and what its failure says: [assertions.md](assertions.md)."
    rows = []
    for name in pytest_kvoffload.__all__:
        if name.startswith("assert_"):
            function = getattr(pytest_kvoffload, name)
            rows.append((f"`{name}({parameters(function)})`", first_paragraph(inspect.getdoc(function) or "")))
    yield table(("assertion", "what it does"), rows)


def configuration() -> Iterator[str]:
    """Sections of ``kvoffload.toml``, the connector kinds with their options, the workload modes."""
    from pytest_kvoffload.engine.connectors import KINDS
    from pytest_kvoffload.gate.policy import RunSettings
    from pytest_kvoffload.gate.verdict import Policy
    from pytest_kvoffload.workload import modes

    yield "## kvoffload.toml"
    yield "The same keys stand under `[tool.kvoffload]` in a `pyproject.toml`."
    for section, record in CONFIGURATION.items():
        yield f"### [{section}]"
        yield table(
            ("key", "type", "default", ""), (_row(field) for field in fields_of(PACKAGE / "records.py", record))
        )
    yield "### [connectors.NAME]"
    yield (
        "`kind`, `args` (further vLLM arguments) and `env` go with every kind; the rest are the kind's own. "
        "[engine.md](engine.md) says what they do."
    )
    yield table(
        ("kind", "what it is", "options"),
        (
            (f"`{kind.name}`", kind.summary, ", ".join(f"`{option}`" for option in kind.options))
            for kind in KINDS.values()
        ),
    )
    yield "### [workload] mode"
    yield table(("mode", "what it is made to show"), docstring_table(modes, modes.MODES))
    yield "### [gate]"
    fields = {field.name: field for field in fields_of(PACKAGE / "gate" / "verdict.py", "Policy")}
    fields |= {field.name: field for field in fields_of(PACKAGE / "gate" / "policy.py", "RunSettings")}
    live = [
        (name, getattr(record, name))
        for record in (Policy(), RunSettings())
        for name in fields
        if hasattr(record, name)
    ]
    yield table(
        ("key", "type", "default", ""),
        ((f"`{name}`", f"`{fields[name].type}`", f"`{value!r}`", fields[name].doc) for name, value in live),
    )
    yield "And `thresholds`, a list of the expressions below. [gate.md](gate.md) says what each key means."


def thresholds() -> Iterator[str]:
    """The grammar of threshold expressions."""
    from pytest_kvoffload.gate import thresholds as grammar

    yield "## Thresholds"
    forms = [line[4:] for line in (grammar.__doc__ or "").splitlines() if line.startswith("    ")]
    yield "```text\n" + "\n".join(forms) + "\n```"
    yield table(
        ("word", "one of"),
        (
            ("PHASE", _codes(grammar.PHASES) + "; without one `restored`"),
            ("TIER", _codes(grammar.TIERS) + "; without one device and external together"),
            ("METRIC", _codes(f"{name}_pN" if name in grammar.LATENCIES else name for name in grammar.METRICS)),
            ("CMP", "`<` or `<=` where low is good, `>` or `>=` where high is good: a threshold says what is good"),
            ("ARM", "the name of a connector, or `reference`"),
        ),
    )


def commands() -> Iterator[str]:
    """Every command with its options, as argparse knows them."""
    from pytest_kvoffload import cli

    yield "## Commands"
    for name, text in cli.COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"kvoffload {name}", add_help=False)
        importlib.import_module(f"pytest_kvoffload.commands.{name}").build_parser(parser)
        yield f"### kvoffload {name}"
        yield f"{text[0].upper()}{text[1:]}."
        yield from _parser(parser)


def exit_codes() -> Iterator[str]:
    """The exit codes of every command."""
    from pytest_kvoffload.errors import ExitCode

    docs = {field.name: field.doc for field in fields_of(PACKAGE / "errors.py", "ExitCode")}
    yield "## Exit codes"
    yield table(("code", "name", "when"), ((str(code.value), code.name.lower(), docs[code.name]) for code in ExitCode))


def rules() -> Iterator[str]:
    """Where the rules stand."""
    from pytest_kvoffload.lint.registry import entries

    yield "## Lint rules"
    yield f"{len(entries())} rules: [rules.md](rules.md), or `kvoffload rules CODE` for the page of one."


def json_fields() -> Iterator[str]:
    """The JSON of measurements and verdicts."""
    from pytest_kvoffload.gate.verdict import VERDICT_SCHEMA_VERSION
    from pytest_kvoffload.records import SCHEMA_VERSION

    yield "## JSON of a measurement"
    yield (
        f"`measurements/*.json` of a run; schema version {SCHEMA_VERSION}. A version grows when a field changes its "
        "meaning, never when one is added. `pytest_kvoffload.measurement_from_json` reads it."
    )
    yield from _records(PACKAGE / "records.py", "Measurement", known=("WorkloadConfig",))
    yield "`WorkloadConfig` has the keys of [[workload]](#workload)."
    yield "## JSON of a verdict"
    yield (
        f"`verdict.json` of the gate; schema version {VERDICT_SCHEMA_VERSION}. Around the verdict stand `kind` "
        "(`kvoffload-verdict`), `schema_version`, `outcome` (`pass`, `fail`, `inconclusive`) and `exit_code`; the rest "
        "is under `verdict`."
    )
    yield from _records(PACKAGE / "gate" / "verdict.py", "Verdict")
    yield from _records(PACKAGE / "stats" / "result.py", "TailResult")


def environment() -> Iterator[str]:
    """The environment variables; a variable in the code that has no sentence here is an error."""
    pattern = re.compile(r"[\"'](KVOFFLOAD_[A-Z_]+)[\"']")
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))
    found = set(pattern.findall(text))
    if found != set(VARIABLES):
        raise SystemExit(f"{Path(__file__).name}: VARIABLES differs from the code in {sorted(found ^ set(VARIABLES))}")
    yield "## Environment variables"
    yield table(("variable", "what it does"), ((f"`{name}`", VARIABLES[name]) for name in sorted(found)))


def _parser(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a parser's usage table, then those of its subcommands."""
    rows, below = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below += list(action.choices.items())
        elif not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:
            rows.append((f"`{_invocation(action)}`", _help(action)))
    if rows:
        yield table(("option", "what it does"), rows)
    for name, child in below:
        yield f"`{parser.prog} {name}`:"
        shown = list(_parser(child))
        yield from shown or ["no options."]


def _invocation(action: argparse.Action) -> str:
    value = action.metavar or (None if action.choices is None else "\\|".join(map(str, action.choices)))
    shown = str(value or action.dest.upper()) if not isinstance(value, tuple) else " ".join(value)
    if not action.option_strings:
        return shown
    words = ", ".join(action.option_strings)
    return words if action.nargs == 0 else f"{words} {shown}"


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {"default": action.default, "prog": ""}


def _records(path: Path, first: str, *, known: Iterable[str] = ()) -> Iterator[str]:
    """Yield a record and every record of the same file that its fields lead to; ``known`` stand elsewhere."""
    classes = {node.name: node for node in tree_of(path).body if isinstance(node, ast.ClassDef)}
    pending, done = [first], set(known)
    while pending:
        name = pending.pop(0)
        if name in done:
            continue
        done.add(name)
        fields = fields_of(path, name)
        yield f"### {name}"
        yield first_paragraph(ast.get_docstring(classes[name]) or "") + "."
        yield table(("field", "type", ""), ((f"`{f.name}`", f"`{f.type}`", f.doc) for f in fields))
        words = [word for field in fields for word in re.findall(r"\w+", field.type)]
        pending += [word for word in words if word in classes]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(line.replace("|  |", "| |") for line in lines)


def _cell(text: str) -> str:
    return " ".join(re.sub(r"(?<!\\)\|", r"\\|", text).split())


def _row(field: Field) -> tuple[str, str, str, str]:
    return f"`{field.name}`", f"`{field.type}`", "" if field.default is None else f"`{field.default}`", field.doc


def _usage(words: Sequence[str], given: Mapping[str, Any]) -> str:
    if given.get("action") == "store_true":
        return words[0]
    value = given.get("metavar") or "\\|".join(given.get("choices", ()))
    return f"{words[0]} {value}"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.exit(main())
