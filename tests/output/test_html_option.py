"""``--kvoffload-html``, in whole runs against small servers (in processes of their own: numpy loads once)."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM
from report_runs import Page

SUITE = """
import pytest
pytestmark = pytest.mark.kvoffload("native")

def test_restored(kvoffload_measurement):
    assert kvoffload_measurement.phase("restored").samples

def test_wrong(kvoffload_measurement):
    assert kvoffload_measurement.arm == "<script>"
"""
CONFIG = """
[connectors.native]
kind = "native"
size_gib = 1
[workload]
prefix_tokens = 128
suffix_tokens = 8
output_tokens = 4
"""


def test_the_tests_are_the_verdict_of_the_report(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", kvoffload=CONFIG)
    pytester.makepyfile(test_suite=SUITE)
    with FakeVLLM(FakeConfig(tier_blocks=800)) as server:
        result = pytester.runpytest_subprocess(f"--kvoffload-url=native={server.url}", "--kvoffload-html=out/r.html")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["report: *r.html"])
    page = Page((pytester.path / "out" / "r.html").read_bytes())
    assert "Tests: 1 passed, 1 failed" in page.text
    assert "test_suite.py::test_wrong: AssertionError" in page.text
    assert f"--kvoffload-url=native={server.url} --kvoffload-html=out/r.html" in page.text
    assert "plot-distribution" in page.ids


def test_a_report_that_cannot_be_written_does_not_hide_the_tests(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", kvoffload=CONFIG)
    pytester.makepyfile(test_suite=SUITE)
    Path("taken").write_text("a file where a directory would have to be")
    with FakeVLLM(FakeConfig(tier_blocks=800)) as server:
        result = pytester.runpytest_subprocess(f"--kvoffload-url=native={server.url}", "--kvoffload-html=taken/r.html")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["kvoffload: *r.html was not written: *"])


def test_a_run_without_a_server_says_that_there_is_no_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("--kvoffload-html=r.html")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["kvoffload: *r.html was not written: no test needed a server"])
    assert not (pytester.path / "r.html").exists()


def test_a_missing_extra_is_said_before_anything_runs(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("")
    pytester.makepyfile("def test_nothing(): pass")
    # A finder that knows no bokeh stands in for an environment without it.
    pytester.makepyfile(
        hide="""
        import importlib.util
        real = importlib.util.find_spec
        importlib.util.find_spec = lambda name, package=None: None if name == "bokeh" else real(name, package)
        """
    )
    result = pytester.runpytest_subprocess("-p", "hide", "--kvoffload-html=r.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*needs the package 'bokeh'*pip install 'pytest-kvoffload?report?'"])
