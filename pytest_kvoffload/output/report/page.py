"""The page: templates, plots and tables put together into one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from pytest_kvoffload._version import __version__
from pytest_kvoffload.engine.masking import mask_text
from pytest_kvoffload.errors import MissingExtraError
from pytest_kvoffload.output.report.document import RunDocument, log_tail
from pytest_kvoffload.output.report.text import harmless
from pytest_kvoffload.output.rows import phase_rows
from pytest_kvoffload.records import Measurement

TITLES: Mapping[str | None, str] = {
    "pass": "Pass",
    "fail": "Fail",
    "inconclusive": "Inconclusive",
    None: "No verdict",
}


def render_page(document: RunDocument) -> bytes:
    """Return the report as one HTML file that needs nothing from the network.

    Raises:
        MissingExtraError: the extra ``report`` is not installed.
    """
    environment = _environment()
    template = environment.get_template("page.html.j2")
    return str(template.render(_context(document))).encode("utf-8")


def _context(document: RunDocument) -> dict[str, Any]:
    from pytest_kvoffload.output.report import plots, tables
    from pytest_kvoffload.output.report.series import all_series, arm_names

    measurements = document.measurements
    series = all_series(measurements)
    rows = [row for measurement in measurements for row in phase_rows(measurement)]
    found: list[plots.Plot] = []
    if any(s.points for s in series):
        reference = _reference(measurements)
        maybe = (
            plots.distribution(series, rows),
            plots.paired(series, reference) if len(measurements) > 1 else None,
            plots.hit_rates(rows),
            plots.traffic(rows),
            plots.timeline(series),
        )
        found = [plot for plot in maybe if plot is not None]
    return {
        "version": __version__,
        "document": document,
        "outcome": document.outcome or "none",
        "title": TITLES[document.outcome],
        "requests": sum(len(phase.samples) for m in measurements for phase in m.phases),
        "arms": [_arm(m, name) for m, name in zip(measurements, arm_names(measurements), strict=True)],
        "plots": found,
        "items": [plot.item for plot in found],
        "results": tables.results(rows) if rows else None,
        "tail": tables.slow_requests(series) if found else None,
        "failed": tables.failed_requests(series),
        "delays": tables.delays(measurements),
        "difference": tables.difference(measurements),
        "environment": tables.environment(measurements) if measurements else None,
        "bokeh": _bokeh_script() if found else "",
    }


def _arm(measurement: Measurement, name: str) -> dict[str, Any]:
    from pytest_kvoffload.output.report.tables import configuration, server_command

    notes = [*measurement.server.differences, *measurement.notes]
    for phase in measurement.phases:
        notes += [f"{phase.name}: {note}" for note in phase.notes]
    return {
        "name": name,
        "measurement": measurement,
        "settings": configuration(measurement),
        "command": server_command(measurement),
        "notes": notes,
        "log": mask_text(log_tail(measurement) or ""),
    }


def _reference(measurements: Sequence[Measurement]) -> int:
    """The arm that the others are drawn against: the control where there is one, else the first."""
    return next((i for i, m in enumerate(measurements) if m.connector.kind == "recompute"), 0)


def _environment() -> Any:
    try:
        import jinja2
        import markupsafe
    except ImportError as error:
        raise MissingExtraError("the HTML report", "report", "jinja2") from error

    def finish(value: Any) -> Any:
        """Every expression of every template passes here: text of others is made harmless, then escaped."""
        return harmless(value) if isinstance(value, str) and not isinstance(value, markupsafe.Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finish,
    )
    # Bokeh defines a model where it is first met and refers to it afterwards: the order of keys counts.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "allow_nan": False}
    # Files of this package and bokeh's own script: no text of a run is in them.
    environment.globals["asset"] = lambda name: markupsafe.Markup(_read_template(name))
    environment.filters["script"] = markupsafe.Markup
    return environment


def _read_template(name: str) -> str:
    return files(__package__).joinpath("templates").joinpath(name).read_text(encoding="utf-8")


def _bokeh_script() -> str:
    try:
        from bokeh.resources import Resources
    except ImportError as error:
        raise MissingExtraError("the HTML report", "report", "bokeh") from error
    scripts = Resources(mode="inline", components=["bokeh"], minified=True).js_raw
    return "\n".join(scripts).replace("</script", "<\\/script")
