"""``kvoffload lint`` and ``kvoffload rules`` as a user runs them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_kvoffload.cli import main

BAD = "vllm serve m --kv-offloading-backend native\n"
GOOD = "vllm serve m --kv-offloading-size 8\n"
Lint = Callable[..., tuple[int, str, str]]


@pytest.fixture
def lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lint:
    """Run ``kvoffload lint`` in a fresh directory: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["lint", *words])
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return run


def test_an_error_exits_1_and_shows_the_line_a_caret_and_the_remedy(lint: Lint) -> None:
    Path("serve.sh").write_text(BAD)
    code, out, _ = lint("serve.sh")
    assert code == 1
    lines = out.splitlines()
    assert lines[0] == (
        "serve.sh:1:14: error: --kv-offloading-backend does nothing without --kv-offloading-size: no offloading "
        "[KVO601 backend-without-size]"
    )
    assert lines[2] == "1 | vllm serve m --kv-offloading-backend native"
    assert lines[3] == "  |              ^~~~~~~~~~~~~~~~~~~~~~~"
    assert "   = add --kv-offloading-size GIB" in lines
    assert lines[-1] == "1 error in 1 file (1 looked at)"


def test_a_clean_tree_exits_0(lint: Lint) -> None:
    Path("serve.sh").write_text(GOOD)
    code, out, _ = lint()
    assert (code, out) == (0, "no findings in 1 file\n")


def test_warnings_alone_exit_0(lint: Lint) -> None:
    Path("serve.sh").write_text("vllm serve m --kv-offloading-size 8 --disable-log-stats\n")
    code, out, _ = lint()
    assert code == 0
    assert "warning: --disable-log-stats" in out


def test_severity_and_pedantic_choose_what_is_reported(lint: Lint) -> None:
    Path("serve.sh").write_text("vllm serve m --cpu-offload-gb 4\n" + GOOD.replace("8", "8 --disable-log-stats"))
    assert "KVO102" not in lint("--severity", "note")[1]
    assert "KVO102" in lint("--pedantic")[1]
    assert "KVO901" not in lint("--severity", "error")[1]


def test_select_and_ignore_take_codes_prefixes_and_names(lint: Lint) -> None:
    Path("serve.sh").write_text(BAD + 'vllm serve m --kv-transfer-config \'{"kv_connector":"NixlConnector"}\'\n')
    assert "KVO203" not in lint("--select", "KVO601")[1]
    assert "KVO601" not in lint("--select", "KVO2")[1]
    out = lint("--ignore", "backend-without-size")[1]
    assert "KVO203" in out
    assert "KVO601" not in out
    assert lint("--ignore", "KVO601,missing-role")[0] == 0


def test_an_unknown_rule_is_a_usage_error_with_a_hint(lint: Lint) -> None:
    code, _, err = lint("--select", "backend-without-sise")
    assert code == 2
    assert err == (
        "kvoffload lint: --select: no rule 'backend-without-sise' (did you mean 'backend-without-size'?); "
        "kvoffload rules lists them\n"
    )


def test_a_missing_path_is_a_usage_error(lint: Lint) -> None:
    code, _, err = lint("nowhere")
    assert (code, err) == (2, "kvoffload lint: no such file or directory: nowhere\n")


def test_json_has_the_documented_schema(lint: Lint) -> None:
    Path("serve.sh").write_text(BAD + 'exec vllm serve "$@" --kv-transfer-config "$(cat x.json)"\n')
    code, out, _ = lint("--format", "json")
    data = json.loads(out)
    assert code == 1
    assert data["schema_version"] == 1
    (finding,) = [d for d in data["diagnostics"] if d["code"] == "KVO601"]
    assert {"code", "name", "severity", "confidence", "path", "line", "column", "message", "remedy"} <= set(finding)
    assert (finding["name"], finding["path"], finding["line"]) == ("backend-without-size", "serve.sh", 1)
    assert data["unresolved"]
    assert {"path", "line", "column", "reason"} <= set(data["unresolved"][0])
    assert data["unresolved_launches"] == 1


def test_unresolved_launches_are_counted_and_said(lint: Lint) -> None:
    Path("a.sh").write_text('exec vllm serve "$@" --kv-transfer-config "$(cat x.json)"\n')
    Path("b.sh").write_text('exec vllm serve "$@" --kv-offloading-size 8\n')
    code, out, _ = lint()
    assert code == 0
    assert "2 launches could not be read statically" in out


def test_several_formats_in_one_run(lint: Lint, tmp_path: Path) -> None:
    Path("serve.sh").write_text(BAD)
    code, out, _ = lint("--format", "json", "--output", "out/a.json", "--format", "sarif", "--output", "a.sarif",
                        "--format", "junit", "--output", "a.xml", "--format", "github")  # fmt: skip
    assert code == 1
    assert out.startswith("::error file=serve.sh,line=1,col=14,title=KVO601 backend-without-size::")
    assert json.loads((tmp_path / "out/a.json").read_text())["diagnostics"]
    assert json.loads((tmp_path / "a.sarif").read_text())["version"] == "2.1.0"
    suite = ElementTree.parse(tmp_path / "a.xml").getroot().find("testsuite")
    assert suite is not None
    assert suite.attrib["failures"] == "1"


def test_two_formats_cannot_share_standard_output(lint: Lint) -> None:
    code, _, err = lint("--format", "json", "--format", "sarif")
    assert code == 2
    assert "only one --format can go to standard output" in err


def test_github_annotations_escape_their_text() -> None:
    from pytest_kvoffload.lint.model import Diagnostic, Location
    from pytest_kvoffload.lint.run import FileResult, Report
    from pytest_kvoffload.output.lint_github import render

    finding = Diagnostic(
        code="KVO601", name="x", severity="note", confidence="high", location=Location(path="a,b:c", line=2),
        message="50%\nnext", remedy="do",
    )  # fmt: skip
    text = render(Report(files=(FileResult(path="a,b:c", text="", diagnostics=(finding,)),)))
    assert text == "::notice file=a%2Cb%3Ac,line=2,col=1,title=KVO601 x::50%25%0Anext. do\n"


def test_standard_input(lint: Lint, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        buffer = io.BytesIO(
            b"services:\n  v:\n    image: vllm/vllm-openai:v0.30.0\n    command: --model m --swap-space 4\n"
        )

    monkeypatch.setattr(sys, "stdin", Stream)
    code, out, _ = lint("-", "--stdin-filename", "compose.yaml")
    assert code == 1
    assert out.startswith("compose.yaml:4:")


def test_the_version_option_wins(lint: Lint) -> None:
    Path("run.sh").write_text("docker run --ipc=host vllm/vllm-openai:v0.9.0 --model m --swap-space 4\n")
    assert lint()[0] == 0
    assert lint("--vllm-version", "0.32.0")[0] == 1
    code, _, err = lint("--vllm-version", "newest")
    assert code == 2
    assert "--vllm-version: 'newest' is no version such as 0.32.0" in err


def test_fix_shows_and_writes(lint: Lint) -> None:
    path = Path("run.sh")
    before = "LMCACHE_CONFIG_FILE=c.yaml\nvllm serve --config=serve.yaml m\n"
    before += 'PYTHONHASHSEED=0 vllm serve m --kv-transfer-config \'{"kv_connector":"LMCacheConnectorV1"}\'\n'
    path.write_text(before)
    code, out, err = lint("--fix", "--diff")
    assert code == 1
    assert path.read_text() == before
    assert '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}' in out
    assert "+vllm serve --config serve.yaml m" in out
    assert "would fix 3 findings" in err
    code, out, err = lint("--fix")
    assert (code, err) == (0, "fixed 3 findings\n")
    assert path.read_text().splitlines()[0] == "export LMCACHE_CONFIG_FILE=c.yaml"
    assert lint("--fix")[2] == "fixed 0 findings\n"


def test_fix_keeps_line_ends_and_leaves_other_encodings_alone(lint: Lint) -> None:
    Path("a.sh").write_bytes(b"\xef\xbb\xbfvllm serve --config=serve.yaml m\r\n# end\r\n")
    assert lint("--fix", "a.sh")[0] == 0
    assert Path("a.sh").read_bytes() == b"\xef\xbb\xbfvllm serve --config serve.yaml m\r\n# end\r\n"
    latin = b"# caf\xe9\nvllm serve --config=serve.yaml m\n"
    Path("b.sh").write_bytes(latin)
    code, _, err = lint("--fix", "b.sh")
    assert code == 1
    assert Path("b.sh").read_bytes() == latin
    assert "b.sh is not UTF-8, or changed meanwhile: not fixed" in err
    assert "fixed 0 findings" in err


def test_diff_needs_fix(lint: Lint) -> None:
    assert lint("--diff")[0] == 2


def test_suppressions(lint: Lint) -> None:
    Path("a.sh").write_text(BAD.rstrip() + "  # kvoffload: ignore[KVO601] set elsewhere\n")
    assert lint("a.sh")[0] == 0
    Path("b.sh").write_text("# kvoffload: ignore[backend-without-size] set elsewhere\n" + BAD)
    assert lint("b.sh")[0] == 0
    Path("c.sh").write_text(GOOD.rstrip() + "  # kvoffload: ignore[KVO601] stale\n")
    code, out, _ = lint("c.sh")
    assert code == 0
    assert "KVO601 finds nothing on line 1: the comment is not needed [KVO910 unused-suppression]" in out
    Path("d.sh").write_text(GOOD.rstrip() + "  # kvoffload: ignore[KVO999] stale\n")
    assert "there is no rule 'KVO999'" in lint("d.sh")[1]
    assert "KVO910" not in lint("c.sh", "--select", "KVO2")[1]


def test_a_suppression_covers_a_continued_command_and_a_block_scalar(lint: Lint) -> None:
    command = "vllm serve m \\\n  --max-model-len 8192 \\\n  --kv-offloading-backend native\n"
    Path("a.sh").write_text("# kvoffload: ignore[KVO601] set elsewhere\n" + command)
    assert lint("a.sh") == (0, "no findings in 1 file\n", "")
    head = "services:\n  v:\n    image: vllm/vllm-openai:v0.30.0\n"
    block = (
        "    command: >  # kvoffload: ignore[KVO601] set elsewhere\n      --model m --kv-offloading-backend native\n"
    )
    Path("compose.yml").write_text(head + block)
    assert lint("compose.yml") == (0, "no findings in 1 file\n", "")
    Path("b.sh").write_text("# kvoffload: ignore[KVO601] only the first\n" + BAD + BAD)
    assert lint("b.sh")[0] == 1


def test_a_secret_is_never_printed(lint: Lint) -> None:
    secret = "hunter2hunter2"
    Path("s.sh").write_text(
        'vllm serve m --kv-transfer-config \'{"kv_connector":"OffloadingConnector","kv_role":"kv_both",'
        '"kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"secondary_tiers":'
        f'[{{"type":"obj","store_config":{{"bucket":"b","endpoint_override":"x","secret_key":"{secret}"}}}}]}}}}\'\n'
    )
    for name in ("text", "json", "sarif", "junit", "github"):
        code, out, _ = lint("--format", name)
        assert code == 1
        assert "KVO903" in out
        assert secret not in out
    for word in (secret, "sk-12345"):
        Path("t.sh").write_text(f"vllm serve m --kv-offloading-backend native --api-key {word} # secret_key: {word}\n")
        out = lint("t.sh", "--select", "KVO601")[1]
        assert "KVO601" in out
        assert word not in out
        assert "--api-key ***" in out


def test_rules_lists_and_shows_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 0
    assert "KVO601  backend-without-size" in capsys.readouterr().out
    assert main(["rules", "KVO601"]) == 0
    page = capsys.readouterr().out
    head = "KVO601 backend-without-size"
    assert page.startswith(f"{head}\n{'=' * len(head)}\n\nA backend that nothing switches on.")
    assert "evidence: vLLM config/vllm.py" in page
    assert main(["rules", "backend-without-sise"]) == 2
    assert "did you mean 'backend-without-size'" in capsys.readouterr().err


def test_help_imports_neither_rules_nor_readers() -> None:
    script = (
        "import sys\nfrom pytest_kvoffload.cli import main\n"
        "try:\n    main(['lint', '--help'])\nexcept SystemExit:\n    pass\n"
        "names = ('pytest_kvoffload.lint.', 'yaml', 'tree_sitter', 'pathspec', 'requests')\n"
        "heavy = [m for m in sys.modules if m.startswith(names)]\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "exit codes: 0 no finding of error level" in done.stdout
