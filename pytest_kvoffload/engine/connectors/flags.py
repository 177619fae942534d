"""Reading a flag out of arguments."""

from __future__ import annotations


def flag_value(words: tuple[str, ...], flag: str) -> str | None:
    """The last value of a flag, in both spellings; ``None`` when it is not there."""
    value = None
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            value = words[index + 1]
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return value


def flag_number(words: tuple[str, ...], flag: str) -> int | None:
    """The last value of a flag as a number; ``None`` when it is not there or is none (vLLM then says so)."""
    text = flag_value(words, flag)
    return int(text) if text is not None and text.isdigit() else None
