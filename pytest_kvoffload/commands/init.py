"""``kvoffload init``: a starting configuration, a test file and, on request, a workflow."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_kvoffload.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from pytest_kvoffload.commands.init_text import Answers

TIER_DIRECTORY = "/tmp/kvoffload-tier"
CONNECTORS: Mapping[str, Mapping[str, Any]] = {
    "native": {"kind": "native", "size_gib": 1.0},
    "tiering": {
        "kind": "tiering",
        "size_gib": 1.0,
        "secondary_tiers": [{"type": "fs", "root_dir": TIER_DIRECTORY}],
    },
}


def build_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--from", dest="source", metavar="FILE", help="carry a launch command over: script, compose file, manifest ..."
    )
    parser.add_argument("--spec", metavar="NAME", help="of several model specs in Helm values, the one to carry over")
    parser.add_argument("--engine", choices=["cpu", "local"], help="managed vLLM without a GPU, or one of yours")
    parser.add_argument("--python", metavar="PATH", help="interpreter that has vllm (implies --engine local)")
    parser.add_argument("--model", metavar="PATH|NAME", help="model to serve (default: a generated test model)")
    parser.add_argument("--connector", choices=sorted(CONNECTORS), help="kind of the tier (default: native)")
    parser.add_argument("--directory", default=".", metavar="DIR", help="where to write (default: here)")
    parser.add_argument("--workflow", action="store_true", help="write .github/workflows/kvoffload.yml too")
    parser.add_argument("--yes", action="store_true", help="ask nothing: defaults for what no option says")


def run(args: argparse.Namespace) -> int:
    """Write the files, or say which one is there already."""
    from pytest_kvoffload.commands import init_text

    if args.python and args.engine == "cpu":
        raise UsageError("--python names an interpreter of yours: it goes with --engine local")
    root = Path(args.directory)
    _refuse_existing(root, workflow=args.workflow)
    asking = sys.stdin.isatty() and not args.yes
    answers, notes = _answers(args, asking=asking)
    workflow = args.workflow or (asking and _ask("write a GitHub workflow too", ("no", "yes")) == "yes")
    files = {
        root / "kvoffload.toml": init_text.config_text(answers),
        root / "tests" / "test_offload.py": init_text.test_text(answers),
    }
    if workflow:
        files[root / ".github" / "workflows" / "kvoffload.yml"] = init_text.workflow_text(answers)
    _check(files[root / "kvoffload.toml"])
    _refuse_existing(root, workflow=workflow)
    for path, text in files.items():
        _write(path, text)
        print(f"wrote {path}")
    for sentence in notes:
        print(sentence)
    print(f"next: kvoffload lint {root}, then pytest {root / 'tests' / 'test_offload.py'}")
    return ExitCode.OK


def _answers(args: argparse.Namespace, *, asking: bool) -> tuple[Answers, tuple[str, ...]]:
    """Return the answers, and what of the launch was left out or replaced, a sentence each."""
    from pytest_kvoffload.commands.init_text import Answers, without_null

    engine = "local" if args.python else args.engine
    if args.source is None:
        if args.spec is not None:
            raise UsageError("--spec names a model spec of the Helm values that --from gives")
        if engine is None:
            engine = _ask("engine: managed vLLM without a GPU, or one of yours", ("cpu", "local")) if asking else "cpu"
        python = args.python
        if engine == "local" and python is None and asking:
            python = input("interpreter that has vllm (empty: the one that runs the tests): ").strip() or None
        model = args.model
        if model is None and asking:
            model = input("model, a path or a name (empty: a generated test model): ").strip() or None
        kind = args.connector
        if kind is None:
            kind = _ask("tier", tuple(CONNECTORS)) if asking else "native"
        return Answers(engine=engine, python=python, model=model, connector=CONNECTORS[kind], arm=kind), ()
    from pytest_kvoffload.commands.init_read import carry

    carried = carry(Path(args.source), spec=args.spec)
    connector, arm = carried.connector, "deployed"
    if args.connector is not None and connector is not None:
        raise UsageError(f"--connector {args.connector}: {args.source} configures a tier already; leave the option out")
    if connector is None:
        arm = args.connector or "native"
        connector = CONNECTORS[arm]
    served: str | None = args.model or carried.model
    words, env, tier_env = carried.args, carried.env, carried.connector_env
    notes = tuple(f"not carried over: {sentence}" for sentence in carried.left_out)
    if engine == "cpu":
        from pytest_kvoffload.commands.init_cpu import for_cpu

        adapted = for_cpu(
            model=carried.model,
            keep_model=args.model is not None,
            args=words,
            env=env,
            connector=connector,
            connector_env=tier_env,
        )
        served, words, env, tier_env = args.model, adapted.args, adapted.env, adapted.connector_env
        connector = adapted.connector or connector
        notes += tuple(f"for the cpu engine: {sentence}" for sentence in adapted.notes)
    transfer = connector.get("kv_transfer_config")
    if transfer is not None and not without_null(transfer):
        connector = {**connector, "kv_transfer_config": json.dumps(transfer)}  # TOML has no null
    answers = Answers(
        engine=engine or "local",
        python=args.python,
        model=served,
        connector=connector,
        arm=arm,
        args=words,
        env=env,
        connector_env=tier_env,
        origin=Path(args.source).name,
    )
    return answers, notes


def _ask(question: str, choices: tuple[str, ...]) -> str:
    """Ask until one of the choices is given; the first is the default."""
    while True:
        answer = input(f"{question} ({'/'.join(choices)}) [{choices[0]}]: ").strip().lower() or choices[0]
        if answer in choices:
            return answer
        print(f"expected one of {', '.join(choices)}")


def _refuse_existing(root: Path, *, workflow: bool) -> None:
    names = ["kvoffload.toml", "tests/test_offload.py", *([".github/workflows/kvoffload.yml"] if workflow else [])]
    for name in names:
        if (root / name).exists() or (root / name).is_symlink():
            raise UsageError(f"{root / name} exists; nothing was written: move it away, or give another --directory")
    project = root / "pyproject.toml"
    if project.is_file() and b"[tool.kvoffload" in project.read_bytes():
        raise UsageError(
            f"{project} has [tool.kvoffload]; nothing was written: a kvoffload.toml beside it would hide that"
        )


def _check(text: str) -> None:
    """Read back what is about to be written; a mistake that came with the launch is named before it is."""
    from pytest_kvoffload.config import build_config, parse_toml_text
    from pytest_kvoffload.engine import validate_connector

    config = build_config(
        parse_toml_text(text, name="kvoffload.toml", source="kvoffload.toml"), source="kvoffload.toml"
    )
    for connector in config.connectors.values():
        validate_connector(connector, engine=config.engine)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
