"""Shell words: quoting, expansions, and field splitting over tree-sitter's syntax tree.

Only what the text itself says is expanded. Nothing is executed: a command substitution gives a value only where it
repeats text (``cat <<EOF``, ``echo``, ``printf``, a file that the same script wrote).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pytest_kvoffload.lint.sources.collect import Word
from pytest_kvoffload.lint.sources.shell_state import State, Variable
from pytest_kvoffload.lint.sources.text import HOLE, Mapped, constant, empty, hole, join

if TYPE_CHECKING:
    from pytest_kvoffload.lint.sources.shell import Script

_ANSI = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "r": "\r", "a": "\a", "e": "\x1b", "0": "\0"}


class Fields:
    """Collects pieces to words."""

    def __init__(self) -> None:
        self.words: list[Word] = []
        self._parts: list[Mapped] = []
        self._open = False
        self._quoted = False
        self._spread = False

    def add(self, piece: Mapped, quoted: bool) -> None:
        """Add literal or quoted text to the current word."""
        self._parts.append(piece)
        self._open = True
        self._quoted = self._quoted or quoted

    def split(self, piece: Mapped) -> None:
        """Add an unquoted expansion: split on white space."""
        pieces = piece.split()
        if not pieces:
            return
        if self._open and piece.text[:1].isspace():
            self.close()
        for index, part in enumerate(pieces):
            if index:
                self.close()
            self.add(part, False)
        if piece.text[-1:].isspace():
            self.close()

    def many(self, words: tuple[Word, ...]) -> None:
        """Add the elements of ``"${A[@]}"``: each a word, the outer two joined to what stands beside them."""
        for index, word in enumerate(words):
            if index:
                self.close()
            self.add(word.value, word.quoted)
            self._spread = self._spread or word.spread

    def unknown(self, at: int, quoted: bool) -> None:
        """Add an unresolved expansion; alone and unquoted it may be any number of words."""
        self._parts.append(hole(at))
        if not quoted and not self._open:
            self._spread = True
        self._open = True
        self._quoted = self._quoted or quoted

    def close(self, start: int | None = None, end: int | None = None) -> None:
        """End the current word."""
        if self._open:
            value = join(self._parts, at=self._parts[0].at)
            spread = self._spread and value.text == HOLE
            begin = value.at if start is None else start
            stop = max(value.end, begin) if end is None else end
            self.words.append(Word(value, begin, stop, spread, self._quoted))
        self._parts, self._open, self._quoted, self._spread = [], False, False, False


def expand(script: Script, node: Any, state: State) -> list[Word]:
    """Expand one argument node to words."""
    script.out.spend()
    fields = Fields()
    _expand(script, node, state, fields, False)
    single = not fields.words
    start, stop = script.outer(node.start_byte), script.outer_end(node)
    fields.close(start if single else None, stop if single else None)
    return fields.words


def expand_one(script: Script, node: Any, state: State) -> Word:
    """Expand a node that is never split (the right side of an assignment)."""
    start, stop = script.outer(node.start_byte), script.outer_end(node)
    fields = Fields()
    if node.type in ("simple_expansion", "expansion", "command_substitution"):
        _expand(script, node, state, fields, True)
    else:
        _expand(script, node, state, fields, False, assignment=True)
    fields.close()
    if not fields.words:
        return Word(empty(start), start, stop)
    value = join([w.value for w in fields.words], at=fields.words[0].value.at, glue=" ")
    quoted = node.type in ("string", "raw_string", "ansi_c_string")
    spread = len(fields.words) == 1 and fields.words[0].spread
    return Word(value, start, stop, spread, quoted)


def _expand(script: Script, node: Any, state: State, fields: Fields, quoted: bool, *, assignment: bool = False) -> None:
    kind = node.type
    if kind in ("word", "number", "extglob_pattern", "special_variable_name", "regex", "test_operator"):
        if node.named_child_count and kind in ("word", "number"):
            _children(script, node, state, fields, quoted, assignment)
            return
        fields.add(_unescape(script.text_of(node)), False)
    elif kind == "raw_string":
        fields.add(script.text_of(node)[1:-1], True)
    elif kind == "ansi_c_string":
        fields.add(_ansi(script.text_of(node)[2:-1]), True)
    elif kind in ("string", "translated_string"):
        fields.add(empty(script.outer(node.start_byte) + 1), True)
        _string(script, node, state, fields)
    elif kind == "concatenation":
        _children(script, node, state, fields, quoted, assignment)
    elif kind in ("simple_expansion", "expansion"):
        _variable(script, node, state, fields, quoted or assignment)
    elif kind == "command_substitution":
        _substitution(script, node, state, fields, quoted or assignment)
    elif kind == "arithmetic_expansion":
        number = _arithmetic(script, node, state)
        at = script.outer(node.start_byte)
        fields.add(constant(str(number), at) if number is not None else hole(at), quoted)
    elif kind == "process_substitution":
        script.run_nested(node, state)
        fields.add(hole(script.outer(node.start_byte)), True)
    elif kind == "brace_expression":
        fields.add(script.text_of(node), False)
    else:
        fields.add(_unescape(script.text_of(node)), False)


def _children(script: Script, node: Any, state: State, fields: Fields, quoted: bool, assignment: bool) -> None:
    position = node.start_byte
    for child in node.children:
        if child.start_byte > position:
            fields.add(_unescape(script.slice(position, child.start_byte)), False)
        if child.type in ("\\", "``"):
            position = child.end_byte
            continue
        _expand(script, child, state, fields, quoted, assignment=assignment)
        position = child.end_byte
    if node.end_byte > position:
        fields.add(_unescape(script.slice(position, node.end_byte)), False)


def _string(script: Script, node: Any, state: State, fields: Fields) -> None:
    """Expand ``"..."``. White space between children is part of the string although the tree leaves it out."""
    position = node.start_byte + 1 + (node.type == "translated_string")
    stop = node.end_byte - 1 if script.data[node.end_byte - 1 : node.end_byte] == b'"' else node.end_byte
    for child in node.children:
        if child.type in ('"', '$"') or child.start_byte >= stop:
            continue
        if child.start_byte > position:
            fields.add(_unquote(script.slice(position, child.start_byte)), True)
        if child.type in ("string_content", "string") or not child.is_named:
            fields.add(_unquote(script.text_of(child)), True)
        else:
            _expand(script, child, state, fields, True)
        position = max(position, child.end_byte)
    if stop > position:
        fields.add(_unquote(script.slice(position, stop)), True)


def _unescape(text: Mapped) -> Mapped:
    """Undo backslashes outside quotes; a backslash-newline vanishes."""
    if "\\" not in text.text:
        return text
    parts, last = [], 0
    for match in re.finditer(r"\\(.|\n)?", text.text, re.DOTALL):
        parts.append(text[last : match.start()])
        if match.group(1) not in (None, "\n"):
            parts.append(text[match.start() + 1 : match.end()])
        last = match.end()
    parts.append(text[last:])
    return join(parts, at=text.at)


def _unquote(text: Mapped) -> Mapped:
    """Undo backslashes inside double quotes: only before ``$ ` " \\`` and a newline."""
    if "\\" not in text.text:
        return text
    parts, last = [], 0
    for match in re.finditer(r'\\([$`"\\\n])', text.text):
        parts.append(text[last : match.start()])
        if match.group(1) != "\n":
            parts.append(text[match.start() + 1 : match.end()])
        last = match.end()
    parts.append(text[last:])
    return join(parts, at=text.at)


def _ansi(text: Mapped) -> Mapped:
    parts, last = [], 0
    for match in re.finditer(r"\\(.)", text.text, re.DOTALL):
        parts.append(text[last : match.start()])
        parts.append(constant(_ANSI.get(match.group(1), match.group(1)), text.offset(match.start())))
        last = match.end()
    parts.append(text[last:])
    return join(parts, at=text.at)


_PLAIN = re.compile(r"^\$(?:(\w+|[@*#?$!-])|\{(\w+|[@*])(\[[^\]]*\])?\})$")
_OPERATOR = re.compile(r"^\$\{(!?)(\w+|[@*])(\[[^\]]*\])?(:?[-=+?])", re.DOTALL)


def _variable(script: Script, node: Any, state: State, fields: Fields, quoted: bool) -> None:
    at = script.outer(node.start_byte)
    text = script.text_of(node).text
    match = _PLAIN.match(text)
    if match:
        name, index = match.group(1) or match.group(2), match.group(3) or ""
        _named(script, state, fields, quoted, at, name, index)
        return
    match = _OPERATOR.match(text)
    if match is None or match.group(1):
        fields.unknown(at, quoted)
        return
    name, operator = match.group(2), match.group(4)
    state.expanded.add(name)
    known = state.variables.get(name)
    value = known.scalar if known is not None else None
    if name.isdigit() and state.positional is not None:
        place = int(name)
        inside = 0 < place <= len(state.positional)
        value = state.positional[place - 1].value if inside else empty(at)
    is_set = value is not None and (bool(value.text) or ":" not in operator)
    if operator[-1] == "+":
        if value is not None and value.text and HOLE not in value.text:
            _argument(script, node, state, fields, quoted, match.end())
        elif value is None or HOLE in value.text:
            fields.unknown(at, quoted)
        return
    if is_set or operator[-1] == "?":
        if value is None:
            fields.unknown(at, quoted)
        elif known is not None and known.array and match.group(3):
            _named(script, state, fields, quoted, at, name, match.group(3))
        elif quoted:
            fields.add(value, True)
        else:
            fields.split(value) if HOLE not in value.text else _holed(value, fields)
        return
    certain = value is not None
    fallback = _argument_text(script, node, state, match.end())
    if not certain:
        fallback = Mapped(fallback.text, fallback.offsets, fallback.at, True)
    if operator[-1] == "=":
        state.assign(name, Variable((Word(fallback, at, at),), at, at))
    if HOLE in fallback.text:
        _holed(fallback, fields) if not quoted else fields.add(fallback, True)
    elif quoted:
        fields.add(fallback, True)
    else:
        fields.split(fallback)


def _holed(value: Mapped, fields: Fields) -> None:
    if value.text == HOLE:
        fields.unknown(value.at, False)
    else:
        fields.split(value)


def _argument(script: Script, node: Any, state: State, fields: Fields, quoted: bool, skip: int) -> None:
    value = _argument_text(script, node, state, skip)
    if quoted:
        fields.add(value, True)
    else:
        _holed(value, fields)


def _argument_text(script: Script, node: Any, state: State, skip: int) -> Mapped:
    """Expand the word after the operator of ``${NAME:-word}``."""
    first = node.start_byte + skip
    inner = Fields()
    children = [c for c in node.children if c.start_byte >= first and c.is_named]
    position, stop = first, node.end_byte - 1
    for child in children:
        if child.start_byte > position:
            inner.add(_unescape(script.slice(position, child.start_byte)), False)
        _expand(script, child, state, inner, True)
        position = max(position, child.end_byte)
    if stop > position:
        inner.add(_unescape(script.slice(position, stop)), False)
    inner.close()
    return inner.words[0].value if inner.words else empty(script.outer(first))


def _named(script: Script, state: State, fields: Fields, quoted: bool, at: int, name: str, index: str) -> None:
    state.expanded.add(name)
    if name in ("@", "*"):
        if state.positional is None:
            fields.unknown(at, False)
            if quoted:
                fields._spread = True
        else:
            fields.many(state.positional)
        return
    if name.isdigit() and state.positional is not None and name != "0":
        place = int(name)
        if place <= len(state.positional):
            word = state.positional[place - 1]
            fields.add(word.value, True) if quoted else _holed(word.value, fields)
        elif quoted:
            fields.add(empty(at), True)
        return
    variable = state.variables.get(name)
    if variable is None:
        if index in ("[@]", "[*]"):
            fields.unknown(at, False)
            fields._spread = True
        else:
            fields.unknown(at, quoted)
        return
    if variable.array and index in ("[@]", "[*]"):
        if index == "[@]" or not quoted:
            fields.many(variable.words)
        elif variable.words:
            fields.add(join([w.value for w in variable.words], at=variable.at, glue=" "), True)
        return
    value = variable.scalar
    if variable.array and (number := re.fullmatch(r"\[(\d+)\]", index)):
        place = int(number.group(1))
        value = variable.words[place].value if place < len(variable.words) else empty(at)
    elif index and index not in ("[@]", "[*]", "[0]"):
        fields.unknown(at, quoted)
        return
    if quoted:
        fields.add(value, True)
    elif variable.words and variable.words[0].spread and value.text == HOLE:
        fields.unknown(value.at, False)
    else:
        _holed(value, fields)


def _substitution(script: Script, node: Any, state: State, fields: Fields, quoted: bool) -> None:
    at = script.outer(node.start_byte)
    value = script.substitution_text(node, state)
    if value is None:
        script.run_nested(node, state)
        fields.unknown(at, quoted)
        return
    value = value[: len(value.text.rstrip("\n"))]
    if quoted:
        fields.add(value, True)
    else:
        _holed(value, fields)


def _arithmetic(script: Script, node: Any, state: State, depth: int = 0) -> int | None:
    """Evaluate ``$((8 * 1024**3))`` where all parts are known."""
    if depth > 30:
        return None
    kind = node.type
    text = script.text_of(node).text
    if kind == "number" or (kind == "word" and text.isdigit()):
        return int(text) if text.isdigit() and len(text) < 25 else None
    if kind in ("variable_name", "word", "simple_expansion", "expansion", "string"):
        name = text.strip('"').lstrip("$").strip("{}")
        variable = state.variables.get(name)
        state.expanded.add(name)
        value = variable.scalar.text if variable else ""
        return int(value) if value.isdigit() and len(value) < 25 else None
    named = node.named_children
    if kind in ("arithmetic_expansion", "parenthesized_expression") and len(named) == 1:
        return _arithmetic(script, named[0], state, depth + 1)
    if kind == "binary_expression" and len(named) == 2:
        left = _arithmetic(script, named[0], state, depth + 1)
        right = _arithmetic(script, named[1], state, depth + 1)
        operator = next((c.type for c in node.children if not c.is_named), "")
        return _operate(left, right, operator)
    return None


def _operate(left: int | None, right: int | None, operator: str) -> int | None:
    if left is None or right is None:
        return None
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if operator == "/":
        return left // right if right else None
    if operator == "%":
        return left % right if right else None
    if operator == "**":
        return left**right if 0 <= right < 80 and abs(left) < 2**20 else None
    if operator == "<<":
        return left << right if 0 <= right < 64 else None
    return None
