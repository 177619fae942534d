"""Secrets are hidden, and what only looks like one is not."""

from __future__ import annotations

import json

import pytest

from pytest_kvoffload.engine.masking import is_secret_name, mask_command, mask_environment, mask_value


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "access_key",
        "secret_key",
        "AWS_SECRET_ACCESS_KEY",
        "session_token",
        "--api-key",
        "apiKey",
        "password",
    ],
)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["--enable-prompt-tokens-details", "max_num_batched_tokens", "tokenizer", "tokens_per_block", "key", "kv_role", ""],
)
def test_a_harmless_name_is_not(name: str) -> None:
    assert not is_secret_name(name)


def test_a_command_line_is_masked_in_every_form() -> None:
    config = {"secondary_tiers": [{"store_config": {"bucket": "b", "access_key": "AK", "secret_key": "SK"}}]}
    words = ["vllm", "--api-key", "hunter2", "--hf-token=hunter2", "--url", "https://me:hunter2@host/x"]
    shown = " ".join(mask_command([*words, "--kv-transfer-config", json.dumps(config), '--x={"password": "hunter2"}']))
    assert "hunter2" not in shown
    assert '"SK"' not in shown
    assert '"AK"' not in shown
    assert '"bucket": "b"' in shown
    assert "https://***@host/x" in shown


def test_a_flag_without_its_value_hides_nothing_else() -> None:
    assert mask_command(["--api-key", "--port", "80"]) == ("--api-key", "--port", "80")


def test_environment_and_values() -> None:
    env = mask_environment({"HF_TOKEN": "x", "EMPTY_TOKEN": "", "PROXY": "http://u:p@h:1", "OMP_NUM_THREADS": "2"})
    assert env == {"HF_TOKEN": "***", "EMPTY_TOKEN": "", "PROXY": "http://***@h:1", "OMP_NUM_THREADS": "2"}
    assert mask_value({"a": [{"password": "x"}], "n": 1, "password": None}) == {
        "a": [{"password": "***"}],
        "n": 1,
        "password": None,
    }
