"""The ``kvoffload`` command: finds the subcommand's module and imports nothing else.

A subcommand is one module of ``commands/`` with ``build_parser(parser)`` and ``run(args) -> int``. Only the one
that was asked for is imported, so that ``kvoffload lint --help`` does not pay for the engine.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import signal
import sys
from collections.abc import Iterator, Sequence

from pytest_kvoffload.errors import ExitCode, KVOffloadError, did_you_mean

COMMANDS: dict[str, str] = {
    "demo": "the main job on real vLLM: with and without a tier, one verdict",
    "engine": "install, list, check and remove the managed vLLM that needs no GPU",
    "lint": "find KV-offload mistakes in scripts, manifests, Python and YAML",
    "init": "write a starting kvoffload.toml, a test file and a workflow",
    "rules": "show the lint rules, or the page of one",
    "size": "compute the tier that a workload needs, in each backend's own unit",
    "doctor": "check this machine before a boot, explain the log of a failed one",
    "meters": "read the meters of a running vLLM and say whether its tier helps",
    "gate": "block a change that regresses the TTFT tail",
    "chaos": "break a tier under a running server, say what its requests then get",
    "report": "write one HTML file of what runs have measured",
    "baseline": "update, show and compare recorded baselines",
}

EXIT_CODES = {
    ExitCode.OK: "what was judged is good",
    ExitCode.FAILED: "what was judged is bad",
    ExitCode.USAGE: "wrong arguments or configuration",
    ExitCode.INCONCLUSIVE: "nothing can be said, and that is no pass",
    ExitCode.ENGINE: "vLLM was not installed, did not boot or died",
    ExitCode.SCRAPE: "metrics could not be read",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C or SIGTERM",
}


def _top_help() -> str:
    width = max(map(len, COMMANDS))
    lines = [
        "usage: kvoffload COMMAND [options]",
        "",
        "Tests and gates for the KV cache that vLLM moves out of device memory.",
        "",
        "commands:",
        *(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()),
        "",
        "exit codes:",
        *(f"  {code.value:>3}  {code.name.lower():<12}  {EXIT_CODES[code]}" for code in ExitCode),
        "",
        "kvoffload COMMAND --help says more; kvoffload --version prints the version.",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code. Errors of ours are one message on stderr, never a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in {"-h", "--help", "help"}:
        print(_top_help())
        return ExitCode.OK if words else ExitCode.USAGE
    if words[0] in {"-V", "--version"}:
        from pytest_kvoffload._version import __version__

        print(f"kvoffload {__version__}")
        return ExitCode.OK
    name = words[0]
    if name not in COMMANDS:
        print(f"kvoffload: unknown command {name!r}{did_you_mean(name, COMMANDS)}", file=sys.stderr)
        return ExitCode.USAGE
    module = importlib.import_module(f"pytest_kvoffload.commands.{name}")
    parser = argparse.ArgumentParser(prog=f"kvoffload {name}", description=COMMANDS[name])
    module.build_parser(parser)
    args = parser.parse_args(words[1:])
    try:
        with _ended_as_by_ctrl_c():
            return int(module.run(args))
    except KVOffloadError as error:
        from pytest_kvoffload.output.wrap import fit_stream

        print(fit_stream(f"kvoffload {name}: {error}", sys.stderr), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"kvoffload {name}: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone (kvoffload ... | head): nothing to report to.
        sys.stderr.close()
        return ExitCode.OK


@contextlib.contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """SIGTERM, which is how a job is cancelled, ends a command as Ctrl-C does: servers stopped, evidence written."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread: whoever called us there has signals of its own
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
