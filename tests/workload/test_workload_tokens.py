from __future__ import annotations

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM

from pytest_kvoffload.errors import WorkloadError
from pytest_kvoffload.workload.tokens import TokenPool, learn_pool, seeded_words


def test_the_pool_holds_ids_that_the_server_gave() -> None:
    with FakeVLLM() as server:
        pool = learn_pool(server.url, model="fake-model", seed=1)
        again = learn_pool(server.url, model="fake-model", seed=1)
    assert not pool.text_only
    assert pool == again
    assert pool.size >= 16
    assert all(5 <= token < 205 for token in pool.ids)


def test_without_tokenize_prompts_are_words_of_measured_length() -> None:
    with FakeVLLM(FakeConfig(tokenize=False)) as server:
        pool = learn_pool(server.url, model="fake-model", seed=1)
    words = seeded_words(1)[:100]
    assert pool.text_only
    # The fake takes every character for a token.
    assert pool.tokens_per_word == pytest.approx(len(" ".join(words)) / 100)
    drawn = pool.draw("a", 500)
    assert len(pool.text(drawn)) == pytest.approx(500, rel=0.15)


def test_a_server_that_is_not_there_is_named() -> None:
    with FakeVLLM() as server:
        url = server.url
    with pytest.raises(WorkloadError, match=r"cannot reach http://127\.0\.0\.1:\d+/tokenize to make prompts"):
        learn_pool(url, model="m", seed=0)


def test_a_server_with_neither_endpoint_is_refused() -> None:
    with (
        FakeVLLM(FakeConfig(tokenize=False, fail_every=1)) as server,
        pytest.raises(WorkloadError, match="has no /tokenize, and a completion"),
    ):
        learn_pool(server.url, model="m", seed=0)


def test_draws_are_exact_and_the_same_for_the_same_key() -> None:
    pool = TokenPool(ids=tuple(range(100, 200)))
    assert len(pool.draw("key", 333)) == 333
    assert pool.draw("key", 64) == pool.draw("key", 64)
    assert pool.draw("key", 64) != pool.draw("other", 64)
    assert set(pool.draw("key", 5000)) <= set(pool.ids)


def test_words_are_distinct_and_seeded() -> None:
    assert len(set(seeded_words(3, 500))) == 500
    assert seeded_words(3) == seeded_words(3)
    assert seeded_words(3) != seeded_words(4)
