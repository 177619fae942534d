"""Options, ini keys, the mark and the header: what a user types, and the text of each refusal."""

from __future__ import annotations

import pytest

CONFIG = """
[connectors.control]
kind = "recompute"
[connectors.native]
kind = "native"
size_gib = 1
[connectors.other]
kind = "native"
size_gib = 2
"""


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            ["--kvoffload-url", "localhost:8000"],
            "*--kvoffload-url: got 'localhost:8000'; expected [[]NAME=]http://HOST:PORT*",
        ),
        (
            ["--kvoffload-url", "http://a:1", "--kvoffload-url", "b=http://b:1"],
            "*--kvoffload-url: give a NAME= to each URL when there is more than one*",
        ),
        (
            ["--kvoffload-url", "b=http://a:1", "--kvoffload-url", "b=http://b:1"],
            "*--kvoffload-url: two servers for 'b'*",
        ),
        (["--kvoffload-url", "http://a:1", "--kvoffload-engine", "cpu"], "*attaches to a running server: leave out*"),
        (["--kvoffload-metrics-url", "http://a:1/metrics"], "*--kvoffload-metrics-url needs --kvoffload-url*"),
        (
            ["--kvoffload-python", "/x", "--kvoffload-engine", "cpu"],
            "*--kvoffload-python names an interpreter of yours: it goes with --kvoffload-engine=local*",
        ),
        (["-o", "kvoffload_lint=strict"], "*kvoffload_lint: got 'strict'; expected off, warn or error*"),
        (
            ["--kvoffload-config", "none.toml"],
            "*none.toml: [[]file]: got No such file or directory; expected a readable file*",
        ),
    ],
)
def test_an_option_that_cannot_be_meant_ends_the_run(pytester: pytest.Pytester, args: list[str], text: str) -> None:
    pytester.makepyfile("def test_a(): pass")
    result = pytester.runpytest(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([text])


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        (
            "conector='native'",
            "*conector: got an unknown keyword; expected one of connector,*(did you mean 'connector'[?])*",
        ),
        ("'a', 'b'", "*[[]@pytest.mark.kvoffload]: got 2 positional arguments; expected one: the connector's name*"),
        ("3", "*connector: got 3; expected the name of a connector in [[]connectors]*"),
        ("workload=[1]", "*workload: got [[]1]; expected a mapping of keys of [[]workload]*"),
    ],
)
def test_a_wrong_mark_ends_the_run_before_any_boot(pytester: pytest.Pytester, mark: str, text: str) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.kvoffload({mark})\ndef test_a(): pass")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([text])


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        ("'natve'", "*connector: got 'natve'; expected one of [[]connectors]: control,*(did you mean 'native'[?])*"),
        ("", "*connector: got nothing; expected a name, since [[]connectors] has native, other*"),
        (
            "'native', workload={'sesions': 3}",
            "*sesions: got an unknown key; expected one of*(did you mean 'sessions'[?])*",
        ),
    ],
)
def test_a_test_that_asks_for_what_is_not_there_fails_with_the_reason(
    pytester: pytest.Pytester, mark: str, text: str
) -> None:
    pytester.makefile(".toml", kvoffload=CONFIG)
    pytester.makepyfile(
        f"import pytest\n@pytest.mark.kvoffload({mark})\ndef test_a(kvoffload_connector, kvoffload_workload): pass"
    )
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([text])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_the_header_says_what_would_run_and_is_silent_elsewhere(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    pytester.runpytest().stdout.no_fnmatch_line("kvoffload:*")
    pytester.makefile(".toml", kvoffload=CONFIG)
    pytester.runpytest().stdout.fnmatch_lines(
        ["kvoffload: engine cpu, connectors control, native, other, config *.toml"]
    )
    pytester.runpytest("--kvoffload-url", "native=http://127.0.0.1:9/").stdout.fnmatch_lines(
        ["kvoffload: attached to http://127.0.0.1:9", "  connectors *", "  config kvoffload.toml"]
    )


def test_options_and_marks_reach_the_records(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", kvoffload=CONFIG)
    pytester.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.kvoffload("native", workload={"seed": 1, "sessions": 3}, engine={"num_gpu_blocks": 7})

        @pytest.mark.kvoffload("other", workload={"sessions": 4})
        def test_closest_mark_wins(kvoffload_connector, kvoffload_workload, kvoffload_engine, kvoffload_model):
            assert kvoffload_connector.options == {"size_gib": 2}
            assert (kvoffload_workload.seed, kvoffload_workload.sessions) == (1, 4)
            assert kvoffload_engine.num_gpu_blocks == 7
            assert (kvoffload_engine.kind, kvoffload_engine.python) == ("local", "/opt/python")
            assert kvoffload_model.path == "/models/x"
        """
    )
    result = pytester.runpytest("--kvoffload-python", "/opt/python", "--kvoffload-model", "/models/x")
    result.assert_outcomes(passed=1)


def test_tests_of_one_configuration_are_brought_together_and_others_stay(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", kvoffload=CONFIG)
    pytester.makepyfile(
        """
        import pytest
        native, other = pytest.mark.kvoffload("native"), pytest.mark.kvoffload("other")
        @native
        def test_1(kvoffload_measurement): pass
        def test_2(): pass
        @other
        def test_3(kvoffload_measurement): pass
        @native
        def test_4(kvoffload_server): pass
        """
    )
    result = pytester.runpytest("--collect-only", "-q")
    names = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert names == ["test_1", "test_2", "test_4", "test_3"]


def test_collecting_makes_no_run(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", kvoffload=CONFIG)
    pytester.makepyfile("def test_a(kvoffload_server): raise AssertionError('booted')")
    result = pytester.runpytest("--collect-only")
    assert result.ret == 0
    assert not (pytester.path / ".kvoffload").exists()


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["test_plain.py"]])
def test_an_unused_plugin_imports_nothing_heavy(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # other plugins may import what they like
    pytester.makepyfile(test_plain="def test_a(): pass")
    script = pytester.makepyfile(
        script=f"""
        import sys, pytest
        pytest.main(["-p", "pytest_kvoffload.plugin", *{args!r}])
        heavy = {{"requests", "yaml", "prometheus_client", "numpy", "scipy", "rich", "vllm", "msgspec", "filelock"}}
        print("HEAVY", sorted(heavy & set(sys.modules)))
        """
    )
    pytester.runpython(script).stdout.fnmatch_lines(["HEAVY [[]]"])
