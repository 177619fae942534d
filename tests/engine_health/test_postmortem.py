"""The post-mortem's reading of a log: order, interleaving, consequences, exit codes, secrets, unknown causes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_kvoffload.engine.postmortem import degraded, diagnose
from pytest_kvoffload.engine.postmortem_log import parse_log

WORKER = "(Worker pid=12) ERROR 11-29 17:27:49 [multiproc_executor.py:1063] "
ENGINE = "(EngineCore pid=11) ERROR 11-29 17:27:50 [core.py:1100] "
API = "(APIServer pid=10) "

WORKER_TRACEBACK = [
    WORKER + "WorkerProc failed to start.",
    WORKER + "Traceback (most recent call last):",
    WORKER + '  File "/venv/lib/python3.11/site-packages/vllm/v1/worker/x.py", line 7, in boot',
    WORKER + "    raise ValueError(cannot_parse_kv_role)",
    WORKER + "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
]
ENGINE_TRACEBACK = [
    ENGINE + "EngineCore failed to start.",
    ENGINE + "Traceback (most recent call last):",
    ENGINE + '  File "/venv/lib/python3.11/site-packages/vllm/v1/engine/core.py", line 9, in run',
    ENGINE + "    raise e from None",
    ENGINE + "Exception: WorkerProc initialization failed due to an exception in a background process. "
    "See stack trace for root cause.",
]
API_TRACEBACK = [
    API + "Traceback (most recent call last):",
    API + '  File "/venv/lib/python3.11/site-packages/vllm/v1/engine/utils.py", line 3, in wait',
    API + "    raise RuntimeError(",
    API + "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
]


def test_the_worker_is_the_cause_and_the_engine_and_the_server_are_consequences() -> None:
    found = diagnose("\n".join([*WORKER_TRACEBACK, *ENGINE_TRACEBACK, *API_TRACEBACK]), exit_code=1)
    assert found.cls == "kv-cache-does-not-fit"
    assert found.cause == "after the weights nothing is left for the device's KV cache"
    assert found.known
    assert "--kv-cache-memory-bytes" in found.remedy
    assert any("No available memory for the cache blocks" in line for line in found.lines)
    assert not any("EngineCore" in line for line in found.lines)


def test_interleaved_processes_are_told_apart() -> None:
    other = [line.replace("Worker pid=12", "Worker pid=13") for line in WORKER_TRACEBACK]
    other[-1] = other[-1].partition("ValueError")[0] + "RuntimeError: NCCL timed out"
    mixed = [line for pair in zip(WORKER_TRACEBACK, other, strict=True) for line in pair]
    found = diagnose("\n".join(mixed))
    assert found.cls == "kv-cache-does-not-fit"
    assert not any("pid=13" in line for line in found.lines)
    parsed = parse_log("\n".join(mixed))
    assert [traceback.exception.text.split(":")[0] for traceback in parsed.tracebacks] == ["ValueError", "RuntimeError"]
    assert all(len({line.process for line in traceback.lines}) == 1 for traceback in parsed.tracebacks)


def test_the_earliest_of_two_known_causes_wins() -> None:
    port = "OSError: [Errno 98] Address already in use"
    later = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', port]
    assert diagnose("\n".join([*WORKER_TRACEBACK, *later])).cls == "kv-cache-does-not-fit"
    assert diagnose("\n".join([*later, *WORKER_TRACEBACK])).cls == "port-in-use"


def test_quoted_code_in_a_traceback_is_no_statement() -> None:
    log = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        '    raise ValueError("Unsupported connector type: " + name)',
        "KeyError: 'x'",
    ]
    found = diagnose("\n".join(log))
    assert (found.cls, found.known) == ("unknown", False)
    assert "KeyError: 'x'" in found.cause


def test_a_warning_is_no_cause() -> None:
    log = "(APIServer pid=1) WARNING 11-29 17:15:14 [x.py:1] OSError: [Errno 98] Address already in use, trying another"
    assert diagnose(log).cls == "unknown"


def test_colours_do_not_hide_anything() -> None:
    coloured = "\n".join(f"\x1b[0;36m{line[:14]}\x1b[0;0m{line[14:]}" for line in WORKER_TRACEBACK)
    assert diagnose(coloured) == diagnose("\n".join(WORKER_TRACEBACK))


def test_an_unknown_cause_says_so_and_shows_the_first_error_block() -> None:
    block = list(WORKER_TRACEBACK)
    block[-1] = WORKER + "FlumoxError: the flux is inverted"
    found = diagnose("\n".join([*block, *ENGINE_TRACEBACK, *API_TRACEBACK]), exit_code=1)
    assert found.cls == "unknown"
    assert not found.known
    text = "not a cause that is known here; the first error of the log is: FlumoxError: the flux is inverted"
    assert found.cause == text
    assert [line for line in found.lines if "FlumoxError: the flux is inverted" in line]
    assert "WorkerProc failed to start." in found.lines[0]
    assert not any("EngineCore" in line for line in found.lines)


def test_the_next_record_of_a_process_does_not_belong_to_its_traceback() -> None:
    other = WORKER.replace("multiproc_executor.py:1063", "multiproc_executor.py:315") + "Worker proc died unexpectedly"
    parsed = parse_log("\n".join([*WORKER_TRACEBACK, WORKER + "  and more of it", other]))
    assert parsed.tracebacks[0].lines[-1].text == "  and more of it"


def test_an_error_line_without_traceback_is_an_error_block_too() -> None:
    log = "\n".join(
        [API + "ERROR 11-29 17:15:14 [x.py:1] the flux is inverted", API + "INFO 11-29 17:15:15 [x.py:2] bye"]
    )
    found = diagnose(log, exit_code=1)
    assert found.lines == (API + "ERROR 11-29 17:15:14 [x.py:1] the flux is inverted",)


@pytest.mark.parametrize(
    ("exit_code", "cls", "text"),
    [
        (-9, "host-memory", "killed (SIGKILL)"),
        (137, "host-memory", "out-of-memory killer"),
        (-7, "shm-too-small", "SIGBUS"),
        (135, "shm-too-small", "SIGBUS"),
        (-11, "native-crash", "signal 11"),
        (134, "native-crash", "signal 6"),
        (-15, "stopped", "signal 15"),
        (143, "stopped", "signal 15"),
        (1, "unknown", "no error in the log, exit code 1"),
        (0, "unknown", "no error in the log, exit code 0"),
    ],
)
def test_without_an_error_the_exit_code_speaks(exit_code: int, cls: str, text: str) -> None:
    found = diagnose("(APIServer pid=1) INFO 11-29 17:15:14 [x.py:1] loading", exit_code=exit_code)
    assert found.cls == cls
    assert text in found.cause
    assert found.remedy


def test_a_known_cause_is_better_than_the_exit_code() -> None:
    assert diagnose("\n".join(WORKER_TRACEBACK), exit_code=-9).cls == "kv-cache-does-not-fit"


def test_an_empty_log_says_so() -> None:
    found = diagnose("")
    assert (found.cls, found.cause, found.lines) == ("unknown", "the log is empty", ())


def test_only_consequences_say_that_the_process_vanished() -> None:
    found = diagnose("\n".join(API_TRACEBACK), exit_code=1)
    assert found.cls == "unknown"
    assert (
        found.cause == "a process of the server ended without an error of its own, exit code 1; it may have been killed"
    )


def test_a_process_that_was_killed_is_named() -> None:
    log = [*API_TRACEBACK[:-1], API_TRACEBACK[-1].replace("{}", "{'EngineCore': -9}")]
    found = diagnose("\n".join(log), exit_code=1)
    assert found.cls == "host-memory"
    assert found.cause.startswith("EngineCore was killed (SIGKILL)")


def test_an_engine_that_vanished_was_killed() -> None:
    log = [
        API + "ERROR 11-29 17:15:14 [async_llm.py:700] AsyncLLM output_handler failed.",
        API + "ERROR 11-29 17:15:14 [async_llm.py:700] Traceback (most recent call last):",
        API + '  ERROR 11-29 17:15:14 [async_llm.py:700]   File "a.py", line 1, in f',
        API + "ERROR 11-29 17:15:14 [async_llm.py:700] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
        "encountered an issue. See stack trace (above) for the root cause.",
    ]
    found = diagnose("\n".join(log), exit_code=1)
    assert found.cls == "host-memory"
    assert found.cause.startswith("the engine's process is gone and wrote no error of its own")
    said = ENGINE + "FlumoxError: x"
    assert diagnose("\n".join([said, *log]), exit_code=1).cls == "unknown"


def test_secrets_are_masked_in_cause_and_lines() -> None:
    log = "\n".join(
        [
            "Traceback (most recent call last):",
            '  File "a.py", line 1, in f',
            "RuntimeError: bad store {'access_key': 'AKIAEXAMPLE', \"secret_key\": \"s3cr3t\", 'bucket': 'kv'} "
            "at http://user:hunter2@store:9000 --hf-token hf_abc, the access key is wrong",
        ]
    )
    found = diagnose(log)
    shown = "\n".join([found.cause, *found.lines])
    assert not {secret for secret in ("AKIAEXAMPLE", "s3cr3t", "hunter2", "hf_abc") if secret in shown}
    assert "'bucket': 'kv'" in shown
    assert "the access key is wrong" in shown


def test_pinning_is_reported_only_when_nothing_failed() -> None:
    pinning = "(Worker pid=1) WARNING 11-29 17:15:14 [host_register.py:54] cudaHostRegister failed (code=2) — transfers"
    assert diagnose(pinning).cls == "pinning-refused"
    assert diagnose("\n".join([pinning, *WORKER_TRACEBACK])).cls == "kv-cache-does-not-fit"
    unknown = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "FlumoxError: x"]
    assert diagnose("\n".join([pinning, *unknown])).cls == "unknown"


def test_an_assertion_names_its_place() -> None:
    log = [
        ENGINE + "Traceback (most recent call last):",
        ENGINE + '  File "/venv/lib/python3.11/site-packages/vllm/v1/core/sched/scheduler.py", line 42, in schedule',
        ENGINE + "    assert num_new_tokens > 0",
        ENGINE + "AssertionError",
    ]
    found = diagnose("\n".join(log))
    assert found.cls == "engine-assertion"
    assert found.cause == "an assertion without text failed at vllm/v1/core/sched/scheduler.py:42 (schedule)"


def test_degraded_mode_that_was_left_again_is_no_failure() -> None:
    head = "(EngineCore pid=1) [2026-11-29 17:15:14,100] LMCache WARNING: LMCache server is "
    lost = head + "unhealthy — entering degraded mode"
    back = head + "healthy again — resuming normal operation"
    assert degraded(lost) is not None
    assert degraded("\n".join([lost, back])) is None
    again = degraded("\n".join([lost, back, lost]))
    assert again is not None
    assert again.cls == "degraded-tier"


def test_a_healthy_log_is_not_degraded() -> None:
    assert degraded("\n".join(WORKER_TRACEBACK)) is None


def test_endless_lines_are_cut() -> None:
    log = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: ' + "a: b " * 200_000
    found = diagnose(log)
    assert len(found.cause) == 400
    assert found.cause.endswith(" ...")
    assert max(len(line) for line in found.lines) == 4000


@given(st.text())
@settings(max_examples=200)
def test_any_text_gets_an_answer(text: str) -> None:
    found = diagnose(text)
    assert found.cls
    assert "\n" not in found.cause
    assert len(found.lines) <= 20


@given(st.lists(st.sampled_from(["INFO", "DEBUG", "WARNING"]), max_size=8), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_noise_of_other_processes_changes_nothing(levels: list[str], random: object) -> None:
    import random as randoms

    assert isinstance(random, randoms.Random)
    mixed = [*WORKER_TRACEBACK, *ENGINE_TRACEBACK, *API_TRACEBACK]
    for index, level in enumerate(levels):
        noise = f"(Worker pid={90 + index}) {level} 11-29 17:15:14 [x.py:1] Traceback of nothing: ok"
        mixed.insert(random.randint(0, len(mixed)), noise)
    clean = diagnose("\n".join([*WORKER_TRACEBACK, *ENGINE_TRACEBACK, *API_TRACEBACK]))
    assert diagnose("\n".join(mixed)) == clean
