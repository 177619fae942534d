"""The tokens that prompts are made of, learnt from the server itself.

A prompt of token ids has an exact length, which is what the arithmetic of eviction needs. Which ids are valid
depends on the model, so a seeded text is tokenized by the server and the ids that come back are the pool: it holds
no special token, and works for a server that was only attached to. A server without ``/tokenize`` (a gateway may
hide it) gets text prompts, whose length is estimated from the usage that the server reports.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_kvoffload.errors import WorkloadError
from pytest_kvoffload.workload.http import post

MINIMUM_IDS = 16
"""Fewer distinct ids than this cannot make prompts that differ within one block."""

_WORDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPool:
    """What prompts are drawn from: ids, or words of a known average length in tokens."""

    ids: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    tokens_per_word: float = 1.0

    @property
    def text_only(self) -> bool:
        """Whether prompts go out as text because the server cannot tokenize for us."""
        return not self.ids

    @property
    def size(self) -> int:
        """Number of distinct pieces."""
        return len(self.ids) or len(self.words)

    def draw(self, key: str, tokens: int) -> tuple[int, ...]:
        """Draw pieces for about ``tokens`` tokens (exactly, with ids), the same for the same ``key``.

        Returns ids, or indices into ``words`` when ``text_only``.
        """
        rng = random.Random(key)
        if self.ids:
            return tuple(rng.choices(self.ids, k=tokens))
        return tuple(rng.choices(range(len(self.words)), k=max(1, round(tokens / self.tokens_per_word))))

    def text(self, pieces: tuple[int, ...]) -> str:
        """Render drawn words."""
        return " ".join(self.words[piece] for piece in pieces)


def seeded_words(seed: int, count: int = _WORDS) -> tuple[str, ...]:
    """Return distinct made-up words of letters and digits; the same for the same seed."""
    rng = random.Random(f"words/{seed}")
    words: dict[str, None] = {}
    while len(words) < count:
        letters = rng.choices(string.ascii_letters + string.digits, k=rng.randint(2, 6))
        words["".join(letters)] = None
    return tuple(words)


def learn_pool(
    url: str,
    *,
    model: str,
    seed: int,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = 30.0,
) -> TokenPool:
    """Ask the server which token ids an ordinary text has; fall back to text prompts.

    Args:
        url: base URL of the server.
        model: the served model's name.
        seed: seed of the text.
        headers: further request headers (authorization).
        timeout_seconds: limit for each of the two requests.

    Raises:
        WorkloadError: the server answers neither ``/tokenize`` nor a completion, or knows too few ids.
    """
    import requests

    words = seeded_words(seed)
    base = url.rstrip("/")
    body = {"model": model, "prompt": " ".join(words), "add_special_tokens": False}
    try:
        answer = post(f"{base}/tokenize", json=body, headers=headers, timeout_seconds=timeout_seconds)
        tokens = answer.json().get("tokens") if answer.ok else None
    except (requests.RequestException, ValueError, AttributeError) as error:
        if isinstance(error, requests.ConnectionError | requests.Timeout):
            raise WorkloadError(f"cannot reach {base}/tokenize to make prompts: {error}") from error
        tokens = None
    if isinstance(tokens, list):
        ids = tuple(sorted({token for token in tokens if isinstance(token, int)}))
        if len(ids) < MINIMUM_IDS:
            raise WorkloadError(
                f"{base}/tokenize knows only {len(ids)} distinct token ids for a text of {len(words)} words; "
                f"prompts that differ in their first block need at least {MINIMUM_IDS}"
            )
        return TokenPool(ids=ids)
    return TokenPool(words=words, tokens_per_word=_tokens_per_word(base, model, words, headers, timeout_seconds))


def _tokens_per_word(
    base: str, model: str, words: tuple[str, ...], headers: Mapping[str, str] | None, timeout_seconds: float
) -> float:
    import requests

    sample = words[:100]
    body = {"model": model, "prompt": " ".join(sample), "max_tokens": 1, "temperature": 0}
    try:
        answer = post(f"{base}/v1/completions", json=body, headers=headers, timeout_seconds=timeout_seconds)
        answer.raise_for_status()
        prompt_tokens = int(answer.json()["usage"]["prompt_tokens"])
    except (requests.RequestException, ValueError, KeyError, TypeError) as error:
        raise WorkloadError(
            f"{base} has no /tokenize, and a completion that would tell the length of a text failed too: {error}"
        ) from error
    return prompt_tokens / len(sample)
