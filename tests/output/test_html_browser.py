"""The report in headless Chromium: it draws, says no error, and does not overflow."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from report_runs import both, hostile, single

from pytest_kvoffload.output.report import RunDocument, render_page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt-get install chromium)")
PROBE = """<script>
addEventListener("load", () => setTimeout(() => {
  const root = document.documentElement;
  root.dataset.overflow = String(root.scrollWidth - root.clientWidth);
  root.dataset.width = String(root.clientWidth);
  root.dataset.canvases = String([...document.querySelectorAll(".plot")].filter(p => p.firstElementChild).length);
}, 2500));
</script></body>"""


def browse(page: bytes, folder: Path, *, width: int, dark: bool) -> tuple[dict[str, str], str]:
    """Return the data attributes of the page's root after it has drawn, and what the console said."""
    assert CHROMIUM is not None
    file = folder / "report.html"
    file.write_bytes(page.replace(b"</body>", PROBE.encode()))
    done = subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *("--enable-logging=stderr", "--virtual-time-budget=10000", f"--window-size={width},900"),
            *(["--blink-settings=preferredColorScheme=0"] if dark else []),
            f"--user-data-dir={folder / 'profile'}",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    root = re.search(r"<html[^>]*>", done.stdout)
    assert root is not None, done.stderr
    return dict(re.findall(r'data-(\w+)="([^"]*)"', root[0])), console


@pytest.mark.parametrize(
    ("document", "plots", "width", "dark"),
    [(both(), 5, 1280, False), (both(), 5, 500, True), (hostile(), 4, 500, False), (single(), 3, 1280, True)],
    ids=["desktop", "phone-dark", "hostile-phone", "one-request-dark"],
)
def test_the_report_draws(tmp_path: Path, document: RunDocument, plots: int, width: int, dark: bool) -> None:
    found, console = browse(render_page(document), tmp_path, width=width, dark=dark)
    assert found["drawn"] == found["canvases"] == str(plots)
    assert int(found["width"]) <= width
    assert found["overflow"] == "0"
    for word in ("Error", "Refused", "error", "WARN"):
        assert word not in console
