"""Render a chart's template with ``helm template``, when that was asked for and helm is on PATH.

Only helm itself runs, offline, with the chart's own values. The rendered lines are led back to the template's lines by
their text: a rendered line points to the next template line that says the same, else to the last one found.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from pytest_kvoffload.lint.sources.collect import Collector
from pytest_kvoffload.lint.sources.text import HOLE, Mapped

TIMEOUT_SECONDS = 60.0


def rendered(out: Collector, text: Mapped) -> Mapped | None:
    """Return the rendered template, ``None`` when it is no chart's template or helm cannot render it (noted)."""
    path = Path(out.source.path)
    chart = next((p for p in path.parents if (p / "Chart.yaml").is_file()), None)
    if chart is None or "templates" not in path.relative_to(chart).parts[:1]:
        return None
    helm = shutil.which("helm")
    if helm is None:
        out.add_unresolved(0, "helm is not on PATH, so the template was not rendered")
        return None
    command = [helm, "template", "kvoffload", str(chart), "--show-only", path.relative_to(chart).as_posix()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as failure:
        out.add_unresolved(0, f"helm could not render the template: {type(failure).__name__}")
        return None
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1][:200]
        out.add_unresolved(0, f"helm could not render the template: {why}")
        return None
    return _led_back(text, done.stdout.replace(HOLE, "\ufffd"))


def _led_back(template: Mapped, output: str) -> Mapped:
    places: dict[str, list[int]] = {}
    position = 0
    for line in template.text.split("\n"):
        places.setdefault(line.strip(), []).append(position + len(line) - len(line.lstrip()))
        position += len(line) + 1
    offsets: list[int] = []
    last = 0
    for line in output.split("\n"):
        bare = line.strip()
        here = next((p for p in places.get(bare, []) if p >= last), None)
        if here is not None and bare:
            last = here
        indent = len(line) - len(line.lstrip())
        for column in range(len(line) + 1):
            known = here is not None and bare and 0 <= column - indent < len(bare)
            offsets.append(template.offset(last + (column - indent if known else 0)))
    return Mapped(output, offsets[: len(output)], template.at)
