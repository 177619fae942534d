"""``kvoffload engine``: install, list, check and remove the managed vLLM that needs no GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from pytest_kvoffload.errors import ExitCode, UsageError, did_you_mean


def build_parser(parser: argparse.ArgumentParser) -> None:
    """Add the four actions."""
    from pytest_kvoffload.catalog.engines import load_engines

    catalog = load_engines()
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    install = actions.add_parser("install", help="install real vLLM on its CPU backend, in an environment of its own")
    install.add_argument("kind", choices=["cpu"], help="the only managed engine is the one that needs no GPU")
    install.add_argument("--vllm-version", metavar="V", help=f"version of vLLM (default: {catalog.default})")
    install.add_argument(
        "--with",
        dest="extras",
        metavar="NAMES",
        default="",
        help=f"comma-separated: {', '.join(extra.name for extra in catalog.extra)}",
    )
    install.add_argument("--extra-index-url", metavar="URL", help="where pip finds the CPU builds of torch")
    install.add_argument("--python", metavar="PY", help="interpreter to build with (default: the running one)")
    install.add_argument("--no-model", action="store_true", help="do not make the test model now")
    install.add_argument("--no-progress", action="store_true", help="say nothing while it runs")
    actions.add_parser("list", help="show the installed engines")
    doctor = actions.add_parser("doctor", help="check that an engine works")
    doctor.add_argument("name", nargs="?", help="as engine list shows it (default: all)")
    remove = actions.add_parser("remove", help="remove an engine")
    remove.add_argument("name", nargs="?", help="as engine list shows it")
    remove.add_argument("--all", action="store_true", help="remove every engine, incomplete ones and test models too")


def run(args: argparse.Namespace) -> int:
    """Run the action that was asked for."""
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "install": _install,
        "list": _list,
        "doctor": _doctor,
        "remove": _remove,
    }
    return actions[args.action](args)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _install(args: argparse.Namespace) -> int:
    from pytest_kvoffload.engine.models import ensure_tiny_model
    from pytest_kvoffload.engine.provision import ensure_engine
    from pytest_kvoffload.output.progress import CommandProgress

    with CommandProgress(enabled=not args.no_progress) as progress:
        say = progress.line if sys.stderr.isatty() or args.no_progress else _say
        install = ensure_engine(
            args.vllm_version,
            extras=[name.strip() for name in args.extras.split(",") if name.strip()],
            progress=say,
            python=args.python,
            extra_index_url=args.extra_index_url,
        )
        model = None if args.no_model else ensure_tiny_model(install.python, {}, progress=say)
    print(f"{install.name}: {install.path}")
    for line in install.mended:
        print(f"  {line}")
    if model is not None:
        print(f"test model: {model}")
    return ExitCode.OK


def _list(args: argparse.Namespace) -> int:
    from pytest_kvoffload.engine.installs import engines_dir, list_installs

    whole, broken = list_installs()
    if not whole and not broken:
        print(f"no engine is installed in {engines_dir()}: kvoffload engine install cpu")
        return ExitCode.OK
    for install in whole:
        torch = install.packages.get("torch", "?")
        print(f"{install.name}  torch {torch}  {_gigabytes(install.path)}  {install.path}")
    for path in broken:
        print(f"{path.name}  incomplete: the next install rebuilds it, engine remove {path.name} removes it")
    return ExitCode.OK


def _doctor(args: argparse.Namespace) -> int:
    from pytest_kvoffload.catalog.engines import load_engines
    from pytest_kvoffload.engine.installs import list_installs
    from pytest_kvoffload.engine.provision import check_engine, checks_for

    whole, broken = list_installs()
    names = [install.name for install in whole] + [path.name for path in broken]
    if args.name and args.name not in names:
        raise UsageError(f"no engine {args.name!r}{did_you_mean(args.name, names)}; installed: {_joined(names)}")
    if not names:
        print("no engine is installed: kvoffload engine install cpu")
        return ExitCode.ENGINE
    bad = False
    for install in whole:
        if args.name not in (None, install.name):
            continue
        checks, versions = check_engine(install.python, checks_for(install.extras))
        print(f"{install.name}: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
        for check in checks:
            print(f"  {'ok ' if check.ok else 'BAD'}  {check.name}: {check.detail}")
        for line in install.mended:
            print(f"  note {line}")
        bad = bad or not all(check.ok for check in checks)
    for path in broken:
        if args.name in (None, path.name):
            print(f"{path.name}: BAD  incomplete: run kvoffload engine install cpu again, or engine remove {path.name}")
            bad = True
    for note in load_engines().note:
        print(f"note {note.name}: {note.text}")
    return ExitCode.ENGINE if bad else ExitCode.OK


def _remove(args: argparse.Namespace) -> int:
    import shutil

    from pytest_kvoffload.engine.installs import list_installs, remove_install
    from pytest_kvoffload.engine.paths import cache_dir

    whole, broken = list_installs()
    paths = {path.name: path for path in [*(install.path for install in whole), *broken]}
    if args.all == bool(args.name):
        raise UsageError("engine remove takes the name of one engine, or --all")
    if args.name and args.name not in paths:
        raise UsageError(f"no engine {args.name!r}{did_you_mean(args.name, paths)}; installed: {_joined(list(paths))}")
    for name, path in paths.items():
        if args.all or name == args.name:
            remove_install(path)
            print(f"removed {name}")
    if args.all:
        shutil.rmtree(cache_dir() / "models", ignore_errors=True)
    return ExitCode.OK


def _joined(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _gigabytes(path: Path) -> str:
    size = sum(file.lstat().st_size for file in path.rglob("*") if not file.is_symlink() and file.is_file())
    return f"{size / 1e9:.1f} GB"
