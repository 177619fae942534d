"""Command-line options, ini keys and the ``kvoffload`` mark: the only reader of pytest's configuration.

Options are read once into a frozen :class:`PluginOptions`; the mark's legal keywords are the fields of
:class:`MarkOptions`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from pytest_kvoffload.errors import ConfigError, MissingExtraError, UsageError, did_you_mean

if TYPE_CHECKING:
    import pytest

LintLevel: TypeAlias = Literal["off", "warn", "error"]
MARK_NAME = "kvoffload"
MARK_LINE = (
    "kvoffload(connector, *, control, engine, model, workload, gate): the connector of kvoffload.toml that this test "
    "measures, its control arm, overrides of the sections [engine], [model] and [workload], and whether "
    "--kvoffload-gate judges it"
)
ARTIFACTS_DIR = ".kvoffload"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginOptions:
    """What the user asked for on the command line and in the ini file."""

    config_file: Path | None = None
    """An explicit configuration file; ``None`` searches upwards from the root directory."""
    urls: Mapping[str, str] = field(default_factory=dict)
    """Running servers to attach to, by connector name; the empty name stands for "whatever it runs"."""
    metrics_urls: tuple[str, ...] = ()
    engine: str | None = None
    python: str | None = None
    vllm_version: str | None = None
    model: str | None = None
    artifacts: Path = Path(ARTIFACTS_DIR)
    lint: LintLevel = "error"
    insist: bool = False
    """Boot although preflight says that it cannot succeed."""
    progress: bool = True
    html: Path | None = None
    """Where to write the HTML report; ``None`` writes none."""
    collect_only: bool = False
    gate: bool = False
    """Judge what the run measured; see ``gate_hooks.py``."""
    baseline_update: bool = False
    """Record what the run measured as baselines."""
    baselines: Path | None = None
    """Folder of baselines; ``None`` is the one beside the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkOptions:
    """Keywords of ``@pytest.mark.kvoffload``; several marks on one test are merged, the closest one wins."""

    connector: str | None = None
    control: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    gate: bool = True
    """Whether ``--kvoffload-gate`` judges what this test measures."""


def add_options(parser: pytest.Parser) -> None:
    """Register the options (``--kvoffload-...``) and ini keys (``kvoffload_...``)."""
    group = parser.getgroup("kvoffload", "vLLM KV-cache offload")
    option = group.addoption
    option(
        "--kvoffload-config", metavar="FILE", help="kvoffload.toml or pyproject.toml to use (default: searched upwards)"
    )
    option(
        "--kvoffload-url",
        metavar="[NAME=]URL",
        action="append",
        default=[],
        help="use the running server at URL for connector NAME instead of booting one (may be repeated); without "
        "NAME it stands for the connector that the server runs",
    )
    option(
        "--kvoffload-metrics-url",
        metavar="URL",
        action="append",
        default=[],
        help="metrics endpoint of the attached server (may be repeated: they are summed; default: URL/metrics)",
    )
    option("--kvoffload-engine", choices=["cpu", "local"], help="override [engine] kind")
    option("--kvoffload-python", metavar="PATH", help="interpreter that has vllm (implies --kvoffload-engine=local)")
    option("--kvoffload-vllm-version", metavar="V", help="version of the managed cpu engine")
    option("--kvoffload-model", metavar="PATH|NAME", help="override [model] path")
    option("--kvoffload-artifacts", metavar="DIR", help=f"where logs and measurements go (default: {ARTIFACTS_DIR})")
    option(
        "--kvoffload-lint",
        choices=get_args(LintLevel),
        help="lint the configuration that a test is about to boot (default: error)",
    )
    option("--kvoffload-insist", action="store_true", help="boot although preflight says that it cannot succeed")
    option("--kvoffload-html", metavar="FILE", help="write one HTML file of what was measured (extra: report)")
    option("--kvoffload-no-progress", action="store_true", help="print no progress while a server boots or is measured")
    option(
        "--kvoffload-gate",
        action="store_true",
        help="judge what the tests measured by [gate] thresholds and by the baselines; the run fails where they are "
        "not kept, or cannot be judged (extra: gate)",
    )
    option(
        "--kvoffload-baseline-update",
        action="store_true",
        help="record what the tests measured as the baselines of this runner, if all of them pass (extra: gate)",
    )
    option(
        "--kvoffload-baselines",
        metavar="DIR",
        help="folder of baselines (default: kvoffload-baselines beside the configuration)",
    )
    parser.addini("kvoffload_baselines", "folder of baselines, relative to the root directory")
    parser.addini("kvoffload_config", "kvoffload.toml or pyproject.toml to use, relative to the root directory")
    parser.addini("kvoffload_artifacts", "where logs and measurements go, relative to the root directory")
    parser.addini("kvoffload_lint", "off, warn or error: lint the configuration that a test is about to boot")


def read_options(config: pytest.Config) -> PluginOptions:
    """Read pytest's configuration into one record.

    Raises:
        UsageError: a value that cannot be meant, or options that contradict each other.
    """
    root = config.rootpath
    get = config.getoption
    file = get("kvoffload_config") or config.getini("kvoffload_config") or None
    artifacts = get("kvoffload_artifacts") or config.getini("kvoffload_artifacts") or ARTIFACTS_DIR
    lint: Any = get("kvoffload_lint") or config.getini("kvoffload_lint") or "error"
    if lint not in get_args(LintLevel):
        raise UsageError(
            f"kvoffload_lint: got {lint!r}; expected off, warn or error{did_you_mean(lint, get_args(LintLevel))}"
        )
    urls = _urls(get("kvoffload_url"))
    engine, python = get("kvoffload_engine"), get("kvoffload_python")
    if urls and (engine or python):
        raise UsageError(
            "--kvoffload-url attaches to a running server: leave out --kvoffload-engine and --kvoffload-python"
        )
    if get("kvoffload_metrics_url") and not urls:
        raise UsageError("--kvoffload-metrics-url needs --kvoffload-url")
    if python and engine == "cpu":
        raise UsageError("--kvoffload-python names an interpreter of yours: it goes with --kvoffload-engine=local")
    gate, update = get("kvoffload_gate"), get("kvoffload_baseline_update")
    if gate and update:
        raise UsageError("--kvoffload-gate judges by the baselines that --kvoffload-baseline-update replaces: give one")
    baselines = get("kvoffload_baselines") or config.getini("kvoffload_baselines") or None
    return PluginOptions(
        config_file=root / file if file else None,
        urls=urls,
        metrics_urls=tuple(get("kvoffload_metrics_url")),
        engine="local" if python else engine,
        python=python,
        vllm_version=get("kvoffload_vllm_version"),
        model=get("kvoffload_model"),
        artifacts=root / artifacts,
        lint=lint,
        insist=get("kvoffload_insist"),
        progress=not get("kvoffload_no_progress"),
        html=_html(config.invocation_params.dir, get("kvoffload_html")),
        collect_only=config.option.collectonly,
        gate=gate,
        baseline_update=update,
        baselines=root / baselines if baselines else None,
    )


def read_marks(item: pytest.Item) -> MarkOptions:
    """Merge the ``kvoffload`` marks of a test; the mark closest to the test wins, mappings are merged by key.

    Raises:
        ConfigError: an unknown keyword, a value of the wrong type, more than one positional argument.
    """
    merged: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers(MARK_NAME))):
        keywords = dict(mark.kwargs)
        if len(mark.args) > 1:
            raise _mark_error(item, None, f"{len(mark.args)} positional arguments", "one: the connector's name")
        if mark.args:
            keywords.setdefault("connector", mark.args[0])
        for key, value in keywords.items():
            merged[key] = _merge(item, key, merged.get(key), value)
    return MarkOptions(**merged)


def _merge(item: pytest.Item, key: str, old: Any, value: Any) -> Any:
    known = [f.name for f in dataclasses.fields(MarkOptions)]
    if key not in known:
        raise _mark_error(item, key, "an unknown keyword", "one of " + ", ".join(known), did_you_mean(key, known))
    if key in {"connector", "control"}:
        if not isinstance(value, str):
            raise _mark_error(item, key, repr(value), "the name of a connector in [connectors]")
        return value
    if key == "gate":
        if not isinstance(value, bool):
            raise _mark_error(item, key, repr(value), "True or False")
        return value
    if not isinstance(value, Mapping):
        raise _mark_error(item, key, repr(value), f"a mapping of keys of [{key}]")
    return {**(old or {}), **value}


def _mark_error(item: pytest.Item, key: str | None, got: str, expected: str, hint: str = "") -> ConfigError:
    return ConfigError(
        section=f"@pytest.mark.{MARK_NAME}", key=key, got=got, expected=expected, source=item.nodeid, hint=hint
    )


def _html(directory: Path, file: str | None) -> Path | None:
    """Return where the report goes; that it can be drawn is known before anything takes minutes."""
    from importlib.util import find_spec

    if file is None:
        return None
    for package in ("jinja2", "bokeh"):
        if find_spec(package) is None:
            raise MissingExtraError("--kvoffload-html", "report", package)
    return directory / file


def _urls(words: list[str]) -> dict[str, str]:
    urls: dict[str, str] = {}
    for word in words:
        name, equals, url = word.partition("=")
        if not equals or "://" in name:
            name, url = "", word
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"--kvoffload-url: got {word!r}; expected [NAME=]http://HOST:PORT")
        if name in urls:
            raise UsageError(f"--kvoffload-url: two servers for {name or 'the unnamed connector'!r}")
        urls[name] = url.rstrip("/")
    if "" in urls and len(urls) > 1:
        raise UsageError("--kvoffload-url: give a NAME= to each URL when there is more than one")
    return urls
