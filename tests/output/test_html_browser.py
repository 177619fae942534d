"""The report in headless Chromium, as a person with a mouse, a keyboard, a phone or a screen reader has it.

What axe cannot see is inside the canvases: their texts are painted in the page's own colours, which is asserted here.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from report_runs import failed_boot, gate_run, hostile, large, rendered, single

from pytest_kvoffload.output.report import RunDocument

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt-get install chromium)")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[test]'")
pytest.importorskip("axe_playwright_python", reason="axe is not installed: pip install '.[test]'")

POINT = """([figure, series, mark]) => {
  const view = [...Bokeh.index.roots].find(v => v.el.closest("#plot-" + figure));
  const drawn = view.model.renderers.filter(r => r.glyph.type === "Scatter")[series];
  const data = drawn.data_source.data, last = data.label.length - 1;
  const box = view.canvas_view.el.getBoundingClientRect();
  const x = data[drawn.glyph.x.field][last], y = data[drawn.glyph.y.field][last];
  return [box.x + view.frame.x_scale.compute(x), box.y + view.frame.y_scale.compute(y)];
}"""
TOOLTIP = """() => {
  const texts = [];
  (function visit(root) {
    for (const part of root.querySelectorAll("*")) {
      if (part.classList.contains("bk-tooltip-content")) texts.push(part.innerText);
      if (part.shadowRoot) visit(part.shadowRoot);
    }
  })(document);
  return texts.join("\\n");
}"""
PICTURES = """() => {
  const names = [];
  (function visit(root) {
    for (const part of root.querySelectorAll("*")) {
      if (part.getAttribute("role") === "img") names.push(part.getAttribute("aria-label"));
      if (part.shadowRoot) visit(part.shadowRoot);
    }
  })(document);
  return names;
}"""
PAINTED = """() => {
  const text = getComputedStyle(document.documentElement).getPropertyValue("--text").trim();
  const axes = Bokeh.documents.flatMap(d => [...d._all_models.values()]).filter(m => /Axis$/.test(m.type));
  return axes.length > 0 && axes.every(a => a.major_label_text_color === text && a.axis_label_text_color === text);
}"""
FOCUS = """() => {
  const at = document.activeElement;
  return at.id || at.getAttribute("aria-label") || at.innerText.slice(0, 60);
}"""


@dataclass
class Seen:
    """An open page, what its console said, and what it asked the network for."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def run(self, script: str, argument: object = None) -> Any:
        """Evaluate a script in the page."""
        return self.page.evaluate(script, argument)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for the module."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(
    browser: Browser, folder: Path, document: Callable[[], RunDocument], *, width: int = 1280, dark: bool = False
) -> Iterator[Seen]:
    """Open the report and wait until it has drawn."""
    file = folder / "report.html"
    file.write_bytes(rendered(document))
    scheme: Any = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(120_000)  # a busy machine is no fault of the page
    page = context.new_page()
    seen = Seen(page)
    page.on("console", lambda m: seen.said.append(f"{m.type}: {m.text}") if m.type in {"warning", "error"} else None)
    page.on("pageerror", lambda error: seen.said.append(str(error)))
    page.on("request", lambda request: seen.asked.append(request.url))
    page.goto(file.as_uri())
    if b'id="items"' in rendered(document):
        page.wait_for_selector("html[data-drawn]")
    yield seen
    context.close()


@pytest.mark.parametrize(
    ("document", "plots", "width", "dark"),
    [
        (gate_run, 9, 1280, False),
        (gate_run, 9, 1280, True),
        (gate_run, 9, 390, False),
        (gate_run, 9, 390, True),
        (hostile, 5, 390, True),
        (hostile, 5, 1280, False),
        (failed_boot, 0, 390, False),
        (failed_boot, 0, 1280, True),
        (single, 3, 390, False),
    ],
)
def test_the_report_draws_and_axe_finds_nothing(
    browser: Browser, tmp_path: Path, document: Callable[[], RunDocument], plots: int, width: int, dark: bool
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with opened(browser, tmp_path, document, width=width, dark=dark) as seen:
        look(seen, plots=plots, width=width)
        # What is folded away is part of the page too (details lie in details).
        seen.run("document.querySelectorAll('details').forEach(part => { part.open = true; })")
        found = Axe().run(seen.page).response
    assert len(found["passes"]) > 20
    broken = [
        (v["id"], v["impact"], v["nodes"][0]["html"], v["nodes"][0]["failureSummary"]) for v in found["violations"]
    ]
    assert broken == []


def test_a_hundred_thousand_requests_draw(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, large, width=390, dark=True) as seen:
        look(seen, plots=7, width=390)


def look(seen: Seen, *, plots: int, width: int) -> None:
    """Assert what holds for every report: all is drawn and named, nothing sticks out, nobody is asked or complains."""
    assert seen.run("document.querySelectorAll('.plot > *').length") == plots
    assert seen.run("document.documentElement.scrollWidth") == width
    pictures = seen.run(PICTURES)
    assert len(pictures) == plots
    assert all(re.search(r"\. .*\d", name) for name in pictures), "each plot says its numbers"
    assert not plots or seen.run(PAINTED)
    assert seen.said == []
    assert [url for url in seen.asked if not url.startswith("file:")] == []
    assert len(seen.asked) == 1


def test_the_first_screen_has_the_verdict_what_changed_and_the_plot(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, gate_run) as seen:
        visible = "s => { const r = document.querySelector(s).getBoundingClientRect(); return [r.top, r.bottom]; }"
        ends = [seen.run(visible, part) for part in ("h1", ".findings", ".changed", ".plot")]
        assert [top for top, _ in ends] == sorted(top for top, _ in ends)
        assert ends[-1][1] <= 900
        assert seen.page.inner_text(".changed").splitlines() == [
            "connector size_gib: 2 → 1",
            "kv-transfer-config kv_connector_extra_config.cpu_bytes_to_use: 2147483648 → 1073741824",
        ]


@pytest.mark.parametrize("figure", ["distribution", "paired", "timeline"])
def test_a_pointer_on_a_tail_point_tells_the_request(browser: Browser, tmp_path: Path, figure: str) -> None:
    series = {"distribution": 1, "paired": 1, "timeline": 3}[figure]  # the candidate's restored phase
    document = gate_run()
    slowest, block = max(
        ((s, m.workload.seed) for m in document.measurements if m.arm == "candidate" for s in m.phases[1].samples),
        key=lambda pair: pair[0].ttft_seconds or 0.0,
    )
    with opened(browser, tmp_path, gate_run) as seen:
        seen.run("id => document.getElementById(id).scrollIntoView({block: 'center'})", f"figure-{figure}")
        x, y = seen.run(POINT, [figure, series, "last"])
        seen.page.mouse.move(x - 40, y + 40)
        seen.page.mouse.move(x, y)
        seen.page.wait_for_function(f"({TOOLTIP})() !== ''")
        told = " ".join(seen.run(TOOLTIP).split())
    seconds = f"{(slowest.ttft_seconds or 0) * 1000:.3g} ms"
    assert f"candidate, restored TTFT: {seconds}" in told
    assert f"session: {slowest.session} of block {block}, turn 0" in told
    assert "prefix: 160 tokens" in told
    assert "cached: 160 tokens" in told
    assert f"sent at: {slowest.sent_at_seconds:.2f} s" in told


def test_the_keyboard_reaches_everything(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, gate_run, width=390) as seen:
        press = seen.page.keyboard.press
        press("Tab")
        assert seen.run(FOCUS) == "Skip to the results"
        assert seen.run("document.activeElement.getBoundingClientRect().left") >= 0
        press("Enter")
        assert seen.run(FOCUS) == "main"
        reached = []
        for _ in range(200):
            press("Tab")
            reached.append(seen.run(FOCUS))
            if reached[-1] == "Command to repeat the run":
                break
        wanted = seen.run(
            "[...document.querySelectorAll('main summary, main .scroll, main pre')]"
            ".filter(part => part.checkVisibility({contentVisibilityAuto: true}))"
            ".map(at => at.id || at.getAttribute('aria-label') || at.innerText.slice(0, 60))"
        )
        assert len(wanted) > 15
        assert [name for name in wanted if name not in reached] == []
        seen.page.focus("[aria-label='Results by arm and phase']")
        press("ArrowRight")
        seen.page.wait_for_function("document.activeElement.scrollLeft > 0")
        seen.page.focus("details summary")
        press("Enter")
        assert seen.run("document.querySelector('details').open")
