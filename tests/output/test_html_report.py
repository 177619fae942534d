"""The HTML report: its structure, what it escapes, how large it gets."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest
from factories import control, good
from report_runs import Page, both, hostile, large, single

from pytest_kvoffload.cli import main
from pytest_kvoffload.errors import MissingExtraError, UsageError
from pytest_kvoffload.output.report import read_documents, render_page
from pytest_kvoffload.output.report.text import LINE_LIMIT, TEXT_LIMIT, harmless
from pytest_kvoffload.records import to_json

MEGABYTE = 1_000_000


def test_the_page_says_the_verdict_first_and_shows_every_plot() -> None:
    page = Page(render_page(both()))
    assert page.open == []
    assert page.text.index("Pass") < page.text.index("The tier helps.") < page.text.index("Time to first token")
    assert {"plot-distribution", "plot-paired", "plot-hits", "plot-traffic", "plot-timeline"} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    tags = [tag for tag, _ in page.tags]
    # Every figure has its words and its numbers beside it.
    assert tags.count("figure") == tags.count("figcaption") == 6
    assert tags.count("h1") == 1
    assert "What differs between the arms" in page.text
    items = json.loads(page.scripts[1])
    assert [item["target_id"] for item in items] == [i for i in page.ids if i.startswith("plot-")]


def test_the_tail_names_each_slow_request() -> None:
    page = render_page(both()).decode()
    tail = page[page.index('id="tail"') :]
    for column in ("session", "prefix tokens", "cached tokens", "phase", "TTFT", "sent at"):
        assert f'<th scope="col">{column}</th>' in tail
    first = re.findall(r"<tr>(<td.*?)</tr>", tail)[0]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", first)
    assert cells == ["control", "cold", "382 ms", "11", "0", "160", "not told", "0.000 s", "12 of 12"]


def test_nothing_is_fetched_from_the_network() -> None:
    page = Page(render_page(both()))
    for tag, attrs in page.tags:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert (attrs.get(name) or "data:").startswith(("data:", "#")), (tag, attrs)
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    styles = "".join(page.texts)
    assert "url(" not in styles
    assert "@import" not in styles


def test_text_of_others_is_escaped() -> None:
    raw = render_page(hostile())
    page = Page(raw)
    assert page.open == []
    assert [tag for tag, _ in page.tags].count("script") == 3  # bokeh, the items, ours
    text = raw.decode()
    assert "<script>alert" not in text
    assert "alert(1)" in page.text
    for hidden in ("\x1b", "\x07", "\u202e", "\u2066"):
        assert hidden not in text
    assert "\\u{202e}" in page.text
    assert "[31m" not in text
    assert max(len(line) for line in page.text.splitlines()) < 3 * LINE_LIMIT
    for item in json.loads(page.scripts[1]):
        assert "<" not in json.dumps(item["doc"]["title"])


def test_harmless_text_says_what_it_cut() -> None:
    assert harmless("plain\ttext\nnext") == "plain\ttext\nnext"
    assert harmless("\x1b]0;title\x07a\x1b[1mb").endswith("ab")
    assert harmless("a" * (LINE_LIMIT + 5)) == "a" * LINE_LIMIT + " [5 more characters]"
    assert harmless("a\n" * TEXT_LIMIT).endswith(f"[{TEXT_LIMIT} more characters]")
    assert harmless("\ud800") == "\\u{d800}"
    assert harmless("日本語 é") == "日本語 é"


def test_a_hundred_thousand_requests_stay_under_three_megabytes() -> None:
    document = large()
    raw = render_page(document)
    assert len(raw) < 3 * MEGABYTE
    page = Page(raw)
    assert "100000 requests" in page.text
    assert "the slowest 150 are all drawn" in page.text
    assert "more requests of the slowest hundredths are not listed" in page.text
    slowest = max(s.ttft_seconds or 0.0 for s in document.measurements[0].phases[0].samples)
    assert f"{slowest:.5g}" in page.scripts[1]


def test_one_request_is_a_report() -> None:
    page = Page(render_page(single()))
    assert "1 arm, 1 request" in page.text
    assert "No verdict" in page.text
    assert "plot-paired" not in page.ids
    assert "1 of 1" in page.text


def test_secrets_do_not_reach_the_page() -> None:
    arm = control()
    connector = dataclasses.replace(arm.connector, env={"HF_TOKEN": "hunter2"}, options={"secret_key": "hunter2"})
    server = dataclasses.replace(
        arm.server, environment={"AWS_SECRET_ACCESS_KEY": "hunter2"}, command=("vllm", "--api-key", "hunter2")
    )
    arm = dataclasses.replace(arm, connector=connector, server=server)
    text = render_page(dataclasses.replace(both(), measurements=(arm,))).decode()
    assert "HF_TOKEN" in text
    assert "hunter2" not in text


def test_a_run_directory_with_a_failed_boot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "measurements").mkdir()
    (tmp_path / "measurements" / "native.json").write_bytes(to_json(good()))
    (tmp_path / "measurements" / "torn.json").write_text('{"phases": ')
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures" / "lmcache-1.txt").write_text("the server did not start: no room in /dev/shm")
    target = tmp_path / "out" / "report.html"
    assert main(["report", str(tmp_path), "--output", str(target)]) == 0
    assert capsys.readouterr().out.startswith(f"{target} (1.")
    text = Page(target.read_bytes()).text
    assert "Servers that did not start" in text
    assert "no room in /dev/shm" in text
    assert "torn.json: not JSON" in text


def test_a_boot_that_failed_alone_is_a_report(tmp_path: Path) -> None:
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures" / "a.txt").write_text("boom")
    page = Page(render_page(read_documents([tmp_path])))
    assert "boom" in page.text
    assert "script" not in [tag for tag, _ in page.tags]


def test_runs_and_verdicts_are_read_back(tmp_path: Path) -> None:
    run = tmp_path / "demo.json"
    run.write_bytes(to_json({"schema_version": 1, "verdict": "helps", "exit_code": 0, "measurements": [good()]}))
    verdict = tmp_path / "verdict.json"
    finding = {"name": "ttft p99", "outcome": "fail", "text": "p99 grew by 40 %"}
    body = {"reference": "main", "candidate": "change", "findings": [finding], "notes": ["n"]}
    verdict.write_text(json.dumps({"kind": "kvoffload-verdict", "outcome": "fail", "verdict": body}))
    document = read_documents([run, verdict, run])
    assert document.outcome == "fail"
    assert len(document.measurements) == 1
    assert "p99 grew by 40 %" in Page(render_page(document)).text


@pytest.mark.parametrize(
    ("content", "message"),
    [("[]", "got list"), ("{", "not JSON"), ("{}", "none of their keys"), ('{"phases": 1}', "no schema_version")],
)
def test_what_is_no_run_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_documents([path])


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing to report: no measurements/\*\.json"):
        read_documents([tmp_path])


@pytest.mark.parametrize("package", ["jinja2", "bokeh.resources"])
def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pytest-kvoffload\[report\]'"):
        render_page(both())
