"""Does the author want the KV cache moved? Said by settings, or in words around the launch.

The weights flags are right when weights are meant. They are a mistake only beside a sign that the KV cache was
meant, so the words are read one comment, name or title at a time, and a text that speaks of weights never counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from pytest_kvoffload.lint.model import Value

_KV = r"(?:kv[-_\s]*(?:cache|blocks?|states?)?s?|key[-/\s]value[-\s]cache|lmcache|prefix(?:es)?[-\s]cache)"
_MOVE = (
    r"(?:off[-_\s]?load\w*|spill\w*|swap\w*|evict\w*|overflow\w*|mov(?:e|es|ing)\b|park\w*|page[sd]?\s+out|extend\w*|tier\w*"
    r"|keep\w*|put\w*|stor(?:e|es|ing)\b|push\w*|dump\w*)"
)
_PLACE = r"(?:host|cpu|d?ram\b|disk|nvme|ssd|main\s+memory|system\s+memory)"

_SENTENCES = (
    re.compile(rf"\b{_KV}\b.{{0,80}}?\b{_MOVE}", re.IGNORECASE | re.DOTALL),
    re.compile(rf"\b{_MOVE}\b.{{0,60}}?\b{_KV}\b", re.IGNORECASE | re.DOTALL),
    re.compile(rf"\b{_KV}\b.{{0,40}}?\b(?:to|on|in|into)\b.{{0,20}}?\b{_PLACE}", re.IGNORECASE | re.DOTALL),
    re.compile(r"KV\s*(?:缓存|cache).{0,20}(?:卸载|换出|内存|主存|CPU)", re.IGNORECASE | re.DOTALL),
    re.compile(r"(?:卸载|换出).{0,20}KV", re.IGNORECASE | re.DOTALL),
)
_NAMES = re.compile(
    r"(?:\A|[^a-z0-9])kv(?:[-_. ]?cache)?[-_. ]?"
    r"(?:off[-_]?load\w*|spill\w*|swap\w*|tier\w*|host\w*|cpu\w*|to[-_ ](?:cpu|host|ram|disk))"
    r"|(?:off[-_]?load\w*|spill|swap)[-_. ](?:the[-_ ])?kv(?![a-z])|(?:\A|[^a-z])lmcache",
    re.IGNORECASE,
)
_WEIGHTS = re.compile(
    r"\bweights?\b|权重|\bmodel(?:'s)? (?:parameters|params|layers)\b"
    r"|\b(?:part|half|rest|some|pieces|layers) of the model\b"
    r"|\boff-?load(?:s|ed|ing)? (?:of )?(?:the |a |this )?model\b|\bmodel (?:is )?(?:too|very) (?:large|big)\b"
    r"|\bmodel\b(?:(?!kv).){0,40}\b(?:does(?: not|n'?t)|cannot|can'?t|won'?t) fit\b"
    r"|\b(?:does(?: not|n'?t)|cannot|can'?t|won'?t) fit\b(?:(?!kv).){0,30}\bmodel\b",
    re.IGNORECASE | re.DOTALL,
)
_ROOM_FOR_KV = re.compile(
    rf"\b(?:room|space|memory|headroom|more|free\w*|leav\w*|vram)\b[^.;\n]{{0,40}}?\bfor\b[^.;\n]{{0,20}}?\b{_KV}\b",
    re.IGNORECASE,
)
_NEGATED = re.compile(
    r"\b(?:no|not|without|never|disabl\w*|instead of|rather than)\s+(?:\w+\s+){0,2}?"
    r"(?:kv\b|kv[-_ ]?cache|lmcache|off-?load|spill|swap|mov|stor|tier)",
    re.IGNORECASE,
)
"""\"Baseline without LMCache\", but not \"the KV cache does not fit\"."""


def _is_name(text: str) -> bool:
    return len(text) <= 120 and not re.search(r"\s\S+\s\S+\s", text)


def speaks_of_weights(words: Iterable[Value]) -> bool:
    """Whether some comment or title says that model weights are meant."""
    return any(word.text and _WEIGHTS.search(word.text) for word in words)


def words_of_kv_offload(words: Iterable[Value], path: str) -> str | None:
    """Return the text that says the KV cache is to be moved, ``None`` when nothing does.

    ``path`` is the linted file: its name counts as a title.
    """
    name = PurePath(path).name
    for text in [name, *_paragraphs(words)]:
        if _WEIGHTS.search(text) or _ROOM_FOR_KV.search(text) or _NEGATED.search(text):
            continue
        if _is_name(text) and _NAMES.search(text):
            return text
        if text != name and any(pattern.search(text) for pattern in _SENTENCES):
            return text
    return None


def _paragraphs(words: Iterable[Value]) -> list[str]:
    """Join texts of consecutive lines: a comment that is wrapped is one sentence."""
    found: list[str] = []
    last = -1
    for word in sorted((w for w in words if w.text), key=lambda w: w.location.line):
        text = str(word.text)
        if found and word.location.line == last + 1:
            found[-1] = f"{found[-1]} {text}"
        else:
            found.append(text)
        last = word.location.line
    return found
