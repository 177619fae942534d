"""Seeded shared-prefix sessions.

A session is a long prefix that several requests share (a system prompt with its documents), and a short suffix
for each of them (the question). Every session is drawn from a key of its own, so the content of session 3 does not
depend on how many sessions there are, and two arms that ask for the same seed send the same prompts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from pytest_kvoffload.records import RequestSpec, WorkloadConfig
from pytest_kvoffload.workload.tokens import TokenPool


@dataclass(slots=True, kw_only=True)
class SessionWriter:
    """Writes the requests of sessions and guarantees that no two sessions begin alike.

    Two prompts share cached blocks only from their first block on, so sessions whose first ``block_tokens`` tokens
    differ share nothing. A draw that begins like an earlier session is drawn again.
    """

    pool: TokenPool
    workload: WorkloadConfig
    block_tokens: int
    _prefixes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _heads: set[tuple[int, ...]] = field(default_factory=set)

    def prefix(self, session: str) -> tuple[int, ...]:
        """Return the prefix of a session, drawn once."""
        if session not in self._prefixes:
            attempt = 0
            while True:
                key = f"{self.workload.seed}/prefix/{session}/{attempt}"
                pieces = self.pool.draw(key, self.workload.prefix_tokens)
                head = pieces[: self.block_tokens]
                if head not in self._heads:
                    break
                attempt += 1
            self._heads.add(head)
            self._prefixes[session] = pieces
        return self._prefixes[session]

    def suffix(self, session: str, turn: int) -> tuple[int, ...]:
        """Return the suffix of one turn of a session."""
        if self.workload.suffix_tokens == 0:
            return ()
        return self.pool.draw(f"{self.workload.seed}/suffix/{session}/{turn}", self.workload.suffix_tokens)

    def request(self, *, index: int, session: int, turn: int, family: str = "") -> RequestSpec:
        """Write one request: the session's prefix and the turn's suffix.

        ``family`` keeps the sessions of one part of a plan apart from those of another that have the same number.
        """
        name = f"{family}{session}"
        return self._spec(
            self.prefix(name) + self.suffix(name, turn), index=index, session=session, turn=turn, follows=None
        )

    def follow_up(self, *, index: int, session: int, turn: int, follows: int) -> RequestSpec:
        """Write a chat turn: only what the user adds; the history is put before it when it is known."""
        return self._spec(self.suffix(f"{session}", turn), index=index, session=session, turn=turn, follows=follows)

    def _spec(
        self, pieces: tuple[int, ...], *, index: int, session: int, turn: int, follows: int | None
    ) -> RequestSpec:
        text = self.pool.text(pieces) if self.pool.text_only else None
        return RequestSpec(
            index=index,
            session=session,
            turn=turn,
            prompt_token_ids=() if text is not None else pieces,
            prefix_tokens=self.workload.prefix_tokens,
            output_tokens=self.workload.output_tokens,
            prompt_text=text,
            estimated_tokens=None if text is None else round(len(pieces) * self.pool.tokens_per_word),
            follows=follows,
        )


def with_arrivals(
    requests: tuple[RequestSpec, ...], *, rate_per_second: float | None, key: str
) -> tuple[RequestSpec, ...]:
    """Give requests Poisson arrival times (exponential gaps of mean ``1 / rate``), or leave the loop closed."""
    if rate_per_second is None:
        return requests
    rng = random.Random(key)
    at, out = 0.0, []
    for request in requests:
        out.append(replace(request, arrival_seconds=at))
        at += rng.expovariate(rate_per_second)
    return tuple(out)
