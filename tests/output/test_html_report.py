"""The HTML report: its structure, what it escapes, how large it gets."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from factories import control, good
from report_runs import Page, both, gate_run, hostile, large, rendered, single

from pytest_kvoffload.cli import main
from pytest_kvoffload.errors import MissingExtraError, UsageError
from pytest_kvoffload.output.report import RunDocument, read_documents, render_page
from pytest_kvoffload.output.report.arms import pool
from pytest_kvoffload.output.report.document import Finding
from pytest_kvoffload.output.report.figures import COLOURS
from pytest_kvoffload.output.report.text import LINE_LIMIT, TEXT_LIMIT, harmless
from pytest_kvoffload.records import KVEventCount, KVEventLog, Measurement, to_json

MEGABYTE = 1_000_000


def test_the_page_says_the_verdict_first_and_shows_every_plot() -> None:
    page = Page(rendered(both))
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
    page = rendered(both).decode()
    tail = page[page.index('id="tail"') :]
    for column in ("session", "prefix tokens", "cached tokens", "phase", "TTFT", "sent at"):
        assert f'<th scope="col">{column}</th>' in tail
    first = re.findall(r"<tr>(<td.*?)</tr>", tail)[0]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", first)
    assert cells == ["control", "cold", "382 ms", "11", "0", "160", "not told", "0.000 s", "12 of 12"]


def test_nothing_is_fetched_from_the_network() -> None:
    page = Page(rendered(both))
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
    raw = rendered(hostile)
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


def test_blocks_of_a_gate_are_one_arm() -> None:
    page = Page(rendered(gate_run))
    assert "2 arms, 480 requests" in page.text
    assert "reference #2" not in page.text
    assert "4 blocks" in page.text
    for plot in ("distribution", "distribution-all", "paired", "timeline", "hits-time", "hits", "traffic", "delays"):
        assert f"plot-{plot}" in page.ids
    assert "candidate, restored: 0 of 120 faster than in reference, middle ratio 1.7" in page.text
    assert "workload seed" not in page.text[: page.text.index("Arms")]  # blocks differ in it, arms do not


def test_two_runs_side_by_side_are_two_arms_and_so_is_the_same_seed_again() -> None:
    blocks = gate_run().measurements
    assert [len(arm.blocks) for arm in pool(blocks)] == [4, 4]
    assert [(arm.name, len(arm.blocks)) for arm in pool((*blocks, *blocks[:6]))] == [
        ("reference", 4),
        ("candidate", 4),
        ("reference #2", 3),
        ("candidate #2", 3),
    ]
    other = dataclasses.replace(blocks[2], connector=dataclasses.replace(blocks[2].connector, options={"size_gib": 9}))
    assert [len(arm.blocks) for arm in pool((blocks[0], other))] == [1, 1]


def test_what_changed_and_what_failed_come_before_the_plot() -> None:
    page = Page(rendered(gate_run))
    order = ("Fail", "ttft_p99 regression < 10%: p99 53.2 ms", "What changed, candidate against reference", "2 → 1")
    places = [page.text.index(words) for words in (*order, "Time to first token, phase restored")]
    assert places == sorted(places)


def test_a_headline_is_short_and_the_whole_text_stands_further_down() -> None:
    long = Finding(name="boot", outcome="fail", text="did not start\n" + "one detail\n" * 200 + "end of it")
    text = Page(render_page(RunDocument(outcome="fail", findings=(long,)))).text
    head, _, rest = text.partition("What was judged")
    assert "boot: did not start one detail" in head
    assert "end of it" not in head
    assert "end of it" in rest


def test_the_verdict_stands_in_numbers_and_in_its_row() -> None:
    raw = rendered(gate_run).decode()
    judged = re.findall(r"<tr>(.*?)</tr>", raw[raw.index('id="findings"') :])[1]
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", judged)
    assert cells[1:] == ["fail", "31.4 ms", "53.2 ms", "1.687 [1.445, no bound]", "1.100", "120", "1.2e-06"]
    rows = re.findall(r"<tr>(.*?)</tr>", raw[raw.index('id="results"') : raw.index('id="findings"')])
    assert [re.findall(r"<td[^>]*>([^<]*)</td>$", row) for row in rows[1:]] == [[""], [""], [""], ["fail"]]


def test_delays_are_those_of_the_server() -> None:
    page = Page(rendered(gate_run))
    text = " ".join(page.text.split())
    assert "candidate restored lookup: mean 0.03 ms of 120, p99 at most 0.1 ms" in text
    assert "candidate restored load: mean 3 ms of 120" in text
    assert "candidate cold store" in text  # its transfers are not counted: a total without a mean
    assert "store store" not in text


def test_what_a_server_does_not_tell_has_a_sentence() -> None:
    page = Page(rendered(single))
    text = " ".join(page.text.split())
    assert "Hit rate over time No plot: not reported by this server for single requests" in text
    assert "Bytes stored and loaded No plot: not reported by this server." in text
    assert "Lookups and transfers No plot: not reported by this server." in text
    text = " ".join(Page(rendered(both)).text.split())
    assert "Lookups and transfers No plot: this server tells how long all of them took together" in text
    assert "plot-hits-time" not in page.ids


def test_checks_before_the_boot_are_listed_worst_first() -> None:
    raw = rendered(gate_run).decode()
    rows = re.findall(r"<tr>(.*?)</tr>", raw[raw.index('id="checks"') :])
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows[1:3]]
    assert cells == [
        ["candidate", "lint", "KVO101 a-rule", "warning", "write it so"],
        ["candidate", "preflight", "shm", "ok", "12 GiB free"],
    ]


def test_use_of_the_device_cache_is_told_as_far_as_it_is_known() -> None:
    text = " ".join(Page(rendered(gate_run)).text.split())
    assert "candidate restored device 0.000 0.100 640 tokens" in text
    assert "Nothing is read during a phase" in text


def test_events_are_added_up_over_blocks_by_replica_and_medium() -> None:
    def heard(tier_blocks: int, lost: int) -> KVEventLog:
        stored = KVEventCount(replica="0", kind="stored", medium="CPU", events=2, blocks=tier_blocks)
        removed = KVEventCount(replica="1", kind="removed", medium="", events=1, blocks=3)
        return KVEventLog(counts=(stored, removed), batches=3, lost_batches=lost)

    def told(measurement: Measurement, tier_blocks: int, lost: int) -> Measurement:
        cold, *rest = measurement.phases
        return dataclasses.replace(
            measurement, phases=(dataclasses.replace(cold, kv_events=heard(tier_blocks, lost)), *rest)
        )

    run = gate_run(blocks=2)
    blocks = [told(m, 40, 1) if m.arm == "candidate" else m for m in run.measurements]
    page = render_page(dataclasses.replace(run, measurements=tuple(blocks))).decode()
    part = page[page.index("<h3>KV cache events</h3>") :]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(<td.*?)</tr>", part)[:2]]
    assert rows == [
        ["candidate", "cold", "0", "stored", "CPU", "4", "80"],
        ["candidate", "cold", "1", "removed", "not told", "2", "6"],
    ]
    assert "candidate, cold: 2 batches lost, lower bounds." in part
    assert "KV cache events" not in rendered(gate_run).decode()


@pytest.mark.parametrize("back", ["#ffffff", "#f4f6f8", "#14171b", "#1e2329"])
def test_colours_of_plots_stand_out_from_both_backgrounds(back: str) -> None:
    """WCAG 2.1, 1.4.11: graphical objects need 3 to 1."""
    style = files("pytest_kvoffload.output.report").joinpath("templates/style.css").read_text()
    assert back in style
    for colour in COLOURS:
        light, dark = sorted((_luminance(colour), _luminance(back)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, (colour, back)


def _luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.1 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_harmless_text_says_what_it_cut() -> None:
    assert harmless("plain\ttext\nnext") == "plain\ttext\nnext"
    assert harmless("\x1b]0;title\x07a\x1b[1mb").endswith("ab")
    assert harmless("a" * (LINE_LIMIT + 5)) == "a" * LINE_LIMIT + " [5 more characters]"
    assert harmless("a\n" * TEXT_LIMIT).endswith(f"[{TEXT_LIMIT} more characters]")
    assert harmless("\ud800") == "\\u{d800}"
    assert harmless("日本語 é") == "日本語 é"


def test_a_hundred_thousand_requests_stay_under_three_megabytes() -> None:
    document = large()
    raw = rendered(large)
    assert len(raw) < 3 * MEGABYTE
    page = Page(raw)
    assert "100000 requests" in page.text
    assert "the slowest 150 are all drawn" in page.text
    assert "more requests of the slowest hundredths are not listed" in page.text
    slowest = max(s.ttft_seconds or 0.0 for s in document.measurements[0].phases[0].samples)
    assert f"{slowest:.5g}" in page.scripts[1]


def test_one_request_is_a_report() -> None:
    page = Page(rendered(single))
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
    for name in ("failures", "servers/a", "checks"):
        (tmp_path / name).mkdir(parents=True)
    said = "the server did not start: no room\n  what to do: make some\n  command: vllm serve m --port 1"
    (tmp_path / "failures" / "a.txt").write_text(said)
    (tmp_path / "servers" / "a" / "server-x.log").write_text(
        "INFO all well\nERROR 01-01 00:00:00 [core.py:1] EngineCore failed to start.\n"
        "ERROR 01-01 00:00:00 [core.py:1] Traceback (most recent call last):\n"
        'ERROR 01-01 00:00:00 [core.py:1]   File "x.py", line 1, in boot\n'
        "ERROR 01-01 00:00:00 [core.py:1] RuntimeError: no room for 8 GiB, api_key=hunter2\n"
    )
    (tmp_path / "servers" / "a" / "server-x.guard.log").write_text("nothing of interest")
    check = {"arm": "a", "kind": "preflight", "name": "shm", "outcome": "warn", "text": "1 GiB free"}
    (tmp_path / "checks" / "a.json").write_text(json.dumps([check]))
    (tmp_path / "checks" / "b.json").write_text("[{]")
    page = Page(render_page(read_documents([tmp_path])))
    text = " ".join(page.text.split())
    assert text.index("Did not start") < text.index("1 server did not start; nothing was judged.")
    assert text.index("a: no room") < text.index("Servers that did not start")
    assert "what to do: make some command: vllm serve m --port 1" in text
    assert "RuntimeError: no room for 8 GiB" in text
    assert "hunter2" not in text
    assert "nothing of interest" not in text
    assert "preflight shm warn 1 GiB free" in text
    assert "b.json" in text
    assert "the server's command stands above, with what went wrong" in text
    assert "script" not in [tag for tag, _ in page.tags]


def test_a_boot_that_was_refused_is_a_report(tmp_path: Path) -> None:
    (tmp_path / "checks").mkdir()
    check = {"arm": "a", "kind": "lint", "name": "KVO701 x", "outcome": "error", "text": "<b>write it so</b>"}
    (tmp_path / "checks" / "a.json").write_text(json.dumps([check]))
    raw = render_page(read_documents([tmp_path]))
    text = " ".join(Page(raw).text.split())
    assert text.index("Did not start") < text.index("a boot was refused; nothing was judged.")
    assert text.index("error lint KVO701 x: <b>write it so</b>") < text.index("Checks before the boot")
    assert "KVO701 x error <b>write it so</b>" in " ".join(Page(raw).text.split())
    assert b"<b>" not in raw


def test_a_verdict_alone_is_a_report_with_its_plot(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(VERDICT))
    page = Page(render_page(read_documents([path])))
    assert [i for i in page.ids if i.startswith("plot-")] == ["plot-ratios"]
    text = " ".join(page.text.split())
    assert "new against old: fail" in text
    assert "ratio 1.687 [1.445, no bound], allowed 1.100, fail" in text
    assert "requests per arm: 112; boots per arm: 2; calibration: none." in text
    assert "kvoffload gate --candidate new" in text


def test_a_verdict_in_its_run_brings_the_run_along(tmp_path: Path) -> None:
    (tmp_path / "measurements").mkdir()
    for i, measurement in enumerate(gate_run(blocks=2, n=5).measurements):
        (tmp_path / "measurements" / f"{i}.json").write_bytes(to_json(measurement))
    (tmp_path / "verdict.json").write_text(json.dumps(VERDICT))
    document = read_documents([tmp_path / "verdict.json"])
    assert document == read_documents([tmp_path])
    assert len(document.measurements) == 4
    assert document.outcome == "fail"


VERDICT = {
    "kind": "kvoffload-verdict",
    "outcome": "fail",
    "command": "kvoffload gate --candidate new",
    "verdict": {
        "reference": "old",
        "candidate": "new",
        "requests_per_arm": 112,
        "boots_per_arm": 2,
        "calibration": "none",
        "findings": [
            {
                "name": "ttft_p99 regression < 10%",
                "outcome": "fail",
                "text": "p99 grew",
                "tail": {
                    "reference_quantile": 0.0314,
                    "candidate_quantile": 0.0532,
                    "ratio": 1.687,
                    "ratio_low": 1.445,
                    "ratio_high": None,
                    "margin": 0.1,
                    "n": 112,
                    "p_value": 1.2e-6,
                },
            }
        ],
    },
}


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
