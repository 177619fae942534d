"""Command lines that stand in YAML: lists of words, strings split as ``shlex`` does, and environment blocks."""

from __future__ import annotations

import re
import shlex

from pytest_kvoffload.lint.model import EnvVar
from pytest_kvoffload.lint.sources.collect import Collector, Word, word_of
from pytest_kvoffload.lint.sources.shell_state import State, Variable, env_var
from pytest_kvoffload.lint.sources.text import HOLE, Mapped, align, empty, hole
from pytest_kvoffload.lint.sources.yamltree import YNode


def word_of_node(node: YNode) -> Word:
    """Make a word of one scalar."""
    return Word(node.text, node.at, max(node.end, node.at), quoted=node.quoted)


MAX_WORDS = 5_000


def words_of_node(node: YNode | None, *, split: bool = True, depth: int = 0) -> list[Word]:
    """Return the words of a list, or of a string (split like a shell would, without expansion)."""
    if node is None:
        return []
    if node.kind == "seq":
        words: list[Word] = []
        for item in node.items:
            if len(words) > MAX_WORDS:
                break
            if item.kind == "seq" and depth < 2:
                words.extend(words_of_node(item, depth=depth + 1))
            elif item.kind == "scalar":
                words.extend(_list_item(item))
        return words
    if node.kind == "scalar" and split and not node.is_null:
        return shlex_words(node.text)
    return []


def _list_item(item: YNode) -> list[Word]:
    word = word_of_node(item)
    if item.scalar == "" and not item.quoted:
        return []
    if set(item.scalar) == {HOLE} and not item.quoted:
        return [Word(item.text, item.at, item.end, spread=True)]
    # `- --max-model-len 4096` is meant as two words, whatever the container makes of it.
    match = re.match(r"^(--?[A-Za-z][\w.-]*)[ \t]+(?=\S)", item.scalar)
    if match and "\n" not in item.scalar:
        first = item.text[: match.end(1)]
        rest = item.text[match.end() :]
        return [Word(first, first.at, first.end), *shlex_words(rest)]
    return [word]


def shlex_words(text: Mapped) -> list[Word]:
    """Split with :mod:`shlex` and map the words back to their places."""
    try:
        values = shlex.split(text.text.replace("\\\n", "  "), comments=False, posix=True)
    except ValueError:
        values = text.text.split()
    words: list[Word] = []
    position = 0
    for value in values[:5000]:
        rest = text[position:]
        lead = re.match(r"(?:\s|\\\n)*", rest.text)
        begin = position + (lead.end() if lead else 0)
        quoted = text.text[begin : begin + 1] in ("'", '"')
        mapped = align(text[begin:], value, skip="'\"\\\n ")
        last = _last_index(text, mapped, begin)
        end = last
        while end < len(text) and text.text[end] in "'\"":
            end += 1
        spread = value != "" and set(value) == {HOLE} and not quoted
        words.append(Word(mapped, text.offset(begin), text.offset(end - 1) + 1 if end else text.at, spread, quoted))
        position = max(end, begin + (2 if value == "" else 0))
    return words


def _last_index(text: Mapped, mapped: Mapped, begin: int) -> int:
    """Return the index in ``text`` just after the last mapped character (offsets only grow inside one scalar)."""
    if not mapped.text:
        return begin
    wanted = mapped.offsets[-1]
    low, high = begin, len(text) - 1
    while low < high:
        middle = (low + high) // 2
        if text.offsets[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low + 1


def environment(out: Collector, node: YNode | None, origin: str) -> tuple[list[tuple[str, int, Word, str]], bool]:
    """Read an environment block: list of name/value, list of ``A=b``, or a mapping. The flag: nothing is hidden."""
    entries: list[tuple[str, int, Word, str]] = []
    complete = True
    if node is None:
        return entries, complete
    if node.kind == "map":
        for key, value in node.members():
            if HOLE in key.scalar:
                complete = False
                continue
            if value.kind == "scalar":
                at_value = value.text if not value.is_null else Mapped("", (), value.at)
                entries.append((key.scalar, key.at, Word(at_value, value.at, value.end, quoted=value.quoted), origin))
            elif value.kind == "map":
                inner = value.get("value")
                word = word_of_node(inner) if inner is not None else Word(hole(value.at), value.at, value.at)
                entries.append((key.scalar, key.at, word, origin))
        return entries, complete
    for item in node.items:
        if item.kind == "scalar":
            name, equals, _ = item.scalar.partition("=")
            if not equals:
                complete = complete and HOLE not in name
                if re.fullmatch(r"\w+", name):
                    entries.append((name, item.at, Word(hole(item.at), item.at, item.end), origin))
                continue
            value_text = item.text[len(name) + 1 :]
            entries.append((name, item.at, Word(value_text, value_text.at, item.end, quoted=item.quoted), origin))
            continue
        name_node = item.get("name")
        if name_node is None or HOLE in name_node.scalar:
            complete = False
            continue
        value_node = item.get("value")
        if value_node is not None and value_node.kind == "scalar":
            text = value_node.text if not value_node.is_null else Mapped("", (), value_node.at)
            word = Word(text, value_node.at, value_node.end, quoted=value_node.quoted)
            entries.append((name_node.scalar, value_node.at, word, origin))
        elif item.get("valueFrom") is not None:
            at = item.get("valueFrom").at  # type: ignore[union-attr]
            entries.append((name_node.scalar, name_node.at, Word(hole(at), at, at), origin))
        else:
            entries.append((name_node.scalar, name_node.at, word_of(empty(name_node.at)), origin))
    return entries, complete


def env_vars(out: Collector, entries: list[tuple[str, int, Word, str]]) -> tuple[EnvVar, ...]:
    """Make the records."""
    return tuple(env_var(out, name, at, word, origin) for name, at, word, origin in entries)


def seeded_state(entries: list[tuple[str, int, Word, str]]) -> State:
    """Return the state a container's script starts with."""
    state = State()
    for name, at, word, origin in entries:
        state.variables[name] = Variable((word,), at, word.end, exported=True, origin=origin)
    return state
