"""The page: templates, plots and tables put together into one file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from pytest_kvoffload._version import __version__
from pytest_kvoffload.engine.masking import mask_text
from pytest_kvoffload.errors import MissingExtraError
from pytest_kvoffload.output.report.document import Finding, RunDocument, log_faults, log_tail
from pytest_kvoffload.output.report.text import harmless, one_line

if TYPE_CHECKING:
    from pytest_kvoffload.output.report.arms import ReportArm
    from pytest_kvoffload.output.report.figures import Plot
    from pytest_kvoffload.output.report.series import Series
    from pytest_kvoffload.output.rows import PhaseRow

TITLES: Mapping[str | None, str] = {
    "pass": "Pass",
    "fail": "Fail",
    "inconclusive": "Inconclusive",
    None: "No verdict",
}
HEADLINES = 3
"""Findings that the first screen names."""
HEADLINE = 400
"""Characters of each; all of it stands further down."""
LOGS = 4
"""Boots of an arm whose command and log are shown."""
UNTOLD = "not reported by this server"
UNTOLD_COUNTS = "this server tells how long all of them took together, not how many there were"
UNTOLD_CACHED = "not reported by this server for single requests (vLLM does with --enable-prompt-tokens-details)"


def render_page(document: RunDocument) -> bytes:
    """Return the report as one HTML file that needs nothing from the network.

    Raises:
        MissingExtraError: the extra ``report`` is not installed.
    """
    environment = _environment()
    template = environment.get_template("page.html.j2")
    return str(template.render(_context(document))).encode("utf-8")


def _context(document: RunDocument) -> dict[str, Any]:
    from pytest_kvoffload.output.report import plots_verdict, settings, tables
    from pytest_kvoffload.output.report.arms import pool
    from pytest_kvoffload.output.report.series import all_series

    arms = pool(document.measurements)
    reference, candidate = _compared(arms, document)
    phase = _focus(arms, document)
    series = all_series(arms)
    rows = [_judged(row, document, candidate=arm.name, phase=phase) for arm in arms for row in arm.rows()]
    plots, absent = _plots(arms, series, rows, reference=reference, phase=phase)
    refused = () if arms or document.failures else _refusals(document)
    changed = settings.changes(arms[reference], arms[candidate]) if reference != candidate else ()
    verdict = plots_verdict.ratios(document.findings)
    if verdict is not None:
        plots.insert(1, verdict)
    drawn = plots[0] if plots and (verdict is plots[0] or any(s.points for s in series)) else None
    return {
        "version": __version__,
        "document": document,
        "outcome": document.outcome or ("fail" if document.failures or refused else "none"),
        "title": TITLES[document.outcome]
        if document.outcome or not (document.failures or refused)
        else "Did not start",
        "refused": refused,
        "broken": [
            dataclasses.replace(f, text=one_line(f.text, HEADLINE)) for f in _broken(document, refused)[:HEADLINES]
        ],
        "judged": tables.judged(document.findings),
        "changed": changed,
        "changed_what": f"{arms[candidate].name} against {arms[reference].name}" if changed else "",
        "requests": sum(len(phase.samples) for m in document.measurements for phase in m.phases),
        "arms": [_arm(arm) for arm in arms],
        "first_plot": drawn,
        "plots": [plot for plot in plots if plot is not drawn],
        "items": [plot.item for plot in plots],
        "absent": absent,
        "usage": tables.device_usage(arms),
        "events": tables.kv_events(arms),
        "results": tables.results(rows) if rows else None,
        "tail": tables.slow_requests(series) if any(s.points for s in series) else None,
        "failed": tables.failed_requests(series),
        "difference": settings.difference(arms),
        "checks": tables.checks(document.checks),
        "environment": settings.environment(arms) if arms else None,
        "bokeh": _bokeh_script() if plots else "",
    }


def _plots(
    arms: Sequence[ReportArm], series: Sequence[Series], rows: Sequence[PhaseRow], *, reference: int, phase: str | None
) -> tuple[list[Plot], list[tuple[str, str]]]:
    """Return the plots that the data carries, the most telling first, and a sentence for each of the others."""
    from pytest_kvoffload.output.report import plots_meters, plots_requests
    from pytest_kvoffload.output.report.delays import delays

    found: list[tuple[Plot | None, str, str]] = []
    if any(s.points for s in series):
        told = [s for s in series if s.phase == phase and s.points]
        several = len({s.phase for s in series}) > 1
        if len(arms) > 1 and several and told:
            title, some = f"Time to first token, phase {phase}", [row for row in rows if _named(row.phase) == phase]
            first = plots_requests.distribution(told, some, name="distribution", title=title)
            whole = plots_requests.distribution(
                series, rows, name="distribution-all", title="Time to first token, all phases"
            )
            found += [(first, "", ""), (whole, "", "")]
        else:
            title = "Time to first token, by arm and phase"
            found.append((plots_requests.distribution(series, rows, name="distribution", title=title), "", ""))
        if len(arms) > 1:
            same = plots_requests.paired(series, reference)
            found.append((same, "The same request in both arms", "no request was served in both arms"))
        found.append((plots_requests.timeline(series), "", ""))
        found.append((plots_requests.hits_over_time(series), "Hit rate over time", UNTOLD_CACHED))
    if arms:
        took = delays(arms)
        found += [
            (plots_meters.hit_rates(rows), "Hit rate by tier", UNTOLD),
            (plots_meters.traffic(arms), "Bytes stored and loaded", UNTOLD),
            (plots_meters.delay_ranges(took), "Lookups and transfers", UNTOLD_COUNTS if took else UNTOLD),
        ]
    return [plot for plot, _, _ in found if plot], [(title, why) for plot, title, why in found if plot is None]


def _refusals(document: RunDocument) -> tuple[Finding, ...]:
    """What lint and preflight refused to boot."""
    return tuple(
        Finding(name=f"{check.kind} {check.name}", outcome=check.outcome, text=check.text)
        for check in document.checks
        if check.outcome in ("error", "fail")
    )


def _broken(document: RunDocument, refused: Sequence[Finding]) -> list[Finding]:
    return [*(finding for finding in document.findings if finding.outcome != "pass"), *refused]


def _compared(arms: Sequence[ReportArm], document: RunDocument) -> tuple[int, int]:
    """Return which arm the others are drawn against, and which one was judged; both are 0 where there is one arm.

    The reference is the one that the verdict names, else the control, else the first.
    """
    names = [arm.name for arm in arms]
    control = next((i for i, arm in enumerate(arms) if arm.first.connector.kind == "recompute"), 0)
    reference = names.index(document.reference) if document.reference in names else control
    others = [i for i in range(len(arms)) if i != reference]
    candidate = names.index(document.candidate) if document.candidate in names else (others or [reference])[0]
    return reference, candidate


def _focus(arms: Sequence[ReportArm], document: RunDocument) -> str | None:
    """Return the phase that the first plot shows: what failed names it, else where tiers show, else the last."""
    names = list(dict.fromkeys(_named(name) for arm in arms for name in arm.phase_names))
    for finding in document.findings:
        if finding.outcome != "pass":
            for name in names:
                if name in finding.name:
                    return name
    return "restored" if "restored" in names else names[-1] if names else None


def _judged(row: PhaseRow, document: RunDocument, *, candidate: str, phase: str | None) -> PhaseRow:
    """The verdict stands in the row that it is about: the candidate's, in the phase that was judged."""
    if document.candidate is None or row.arm != document.candidate or _named(row.phase) != phase:
        return row
    return dataclasses.replace(row, verdict=document.outcome or "")


def _named(phase: str) -> str:
    return one_line(phase, 40)


def _arm(arm: ReportArm) -> dict[str, Any]:
    from pytest_kvoffload.output.report.settings import configuration, server_command

    notes: list[str] = []
    for measurement in arm.blocks:
        notes += [*measurement.server.differences, *measurement.notes]
        for phase in measurement.phases:
            notes += [f"{phase.name}: {note}" for note in phase.notes]
    logs = {m.server.log_path: m for m in arm.blocks if m.server.log_path}
    return {
        "name": arm.name,
        "measurement": arm.first,
        "blocks": len(arm.blocks),
        "complete": all(m.complete for m in arm.blocks),
        "settings": configuration(arm),
        "commands": list(dict.fromkeys(filter(None, (server_command(m) for m in arm.blocks))))[:LOGS],
        "notes": list(dict.fromkeys(notes)),
        "logs": [(path, log) for path, m in list(logs.items())[:LOGS] if (log := mask_text(log_tail(m) or ""))],
        "faults": [(path, lines) for path, m in logs.items() if (lines := log_faults(m))],
    }


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
