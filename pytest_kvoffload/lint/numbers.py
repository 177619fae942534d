"""How vLLM and LMCache read the scalars of their configuration, so that rules judge what the process would see."""

from __future__ import annotations

import math
import re

from pytest_kvoffload.lint.model import Node, Value

GIB = 2**30
GB = 10**9

_HUMAN = re.compile(r"\A\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT])\s*\Z")
_SUFFIX = {
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
_SIZE = re.compile(r"\A\s*\d+(?:\.\d+)?(?:e\d+)?\s*(?:[kmgtp]i?b?|b|bytes?)\s*\Z", re.IGNORECASE)
TRUE_WORDS = frozenset({"true", "1"})
"""What LMCache's boolean parser takes for true, whatever the case; everything else is false without a word."""
OTHER_TRUE_WORDS = frozenset({"yes", "on", "y", "t", "enable", "enabled"})
FALSE_WORDS = frozenset({"false", "0", "no", "off", "n", "f", "none", "disable", "disabled", ""})


def human_number(text: str) -> int | float | None:
    """Read a number as vLLM's argument parser does: ``8G`` is 2**33, ``8g`` is 8e9; ``None`` when it is no number."""
    match = _HUMAN.match(text)
    if match:
        return int(float(match.group(1)) * _SUFFIX[match.group(2)])
    return plain_number(text)


def plain_number(text: str) -> int | float | None:
    """Read what Python's ``int`` or ``float`` reads; ``None`` when both refuse."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def looks_like_size(text: str) -> bool:
    """Whether it is a number with a unit, such as ``20Gi``, ``8GB`` or ``512 MiB``."""
    return bool(_SIZE.match(text))


def node_number(node: Node | None) -> int | float | None:
    """Return the number that vLLM would take from that node: a number, or a string that ``int`` reads."""
    if node is None:
        return None
    if node.kind == "number" and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return node.value
    if node.kind == "string" and isinstance(node.value, str):
        return plain_number(node.value)
    return None


def known_text(value: Value | None) -> str | None:
    """Return the text of a value, ``None`` when there is none or it cannot be known."""
    if value is None or value.certainty == "unresolved":
        return None
    return value.text


def show_bytes(count: float) -> str:
    """Write a size for people, exactly where it is a whole number of units: ``8 GiB``, ``1.5 TiB``, ``8 bytes``."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{int(count)} bytes"


def show_number(number: float) -> str:
    """Write a number without a trailing ``.0``."""
    return f"{number:g}" if abs(number) < 10**6 else str(int(number))
