"""Shell scripts: walked statement by statement over tree-sitter-bash's tree, along each branch.

``if`` and ``case`` fork the state, so that a launch is seen with what its own path has set. Paths whose later
behaviour cannot differ are joined again, and the same condition is never answered in two ways on one path.
"""

from __future__ import annotations

import re
from typing import Any

from pytest_kvoffload.lint.model import Value
from pytest_kvoffload.lint.sources.collect import Collector, Word, comments_near, file_words
from pytest_kvoffload.lint.sources.formats import trigger
from pytest_kvoffload.lint.sources.grammar import parse
from pytest_kvoffload.lint.sources.shell_commands import run_command
from pytest_kvoffload.lint.sources.shell_heredoc import file_written, heredoc_of, keep_heredoc
from pytest_kvoffload.lint.sources.shell_state import State, Variable
from pytest_kvoffload.lint.sources.shell_words import expand, expand_one
from pytest_kvoffload.lint.sources.text import Mapped, hole, join

MAX_PATHS = 8
MAX_LOOP = 4
MAX_WORDS = 5_000
MAX_CALLS = 12
MAX_REPEATS = 24
"""How often one function is walked; a launcher called oftener repeats itself."""
MANY_STEPS = 12_000
"""Work after which branches are no longer told apart."""


_FOREIGN = re.compile(r"[^\x01-\x7f]")


class Script:
    """One shell text being read."""

    def __init__(self, out: Collector, text: Mapped, source: str, depth: int = 0) -> None:
        self.out = out
        self.text = text
        self.source = source
        self.depth = depth
        self.calls = 0
        self.linear = 0
        self.counts: dict[str, int] = {}
        self.called: set[str] = set()
        self.names: list[str] = []
        """Functions being run, innermost last: their names say what is meant."""
        # One byte a character. The grammar's C scanner hands characters above 255 to `isalnum`, which reads outside
        # its table for them (a crash of the interpreter, now and then); to the syntax they are letters like any other.
        self.data = _FOREIGN.sub("x", text.text).encode("ascii")
        self.extra_words: list[Value] = []
        self.said: list[Value] = []
        """Texts of ``echo``, which count for the launches near them."""
        self.tree, self.root = parse("bash", self.data)

    # -- places ---------------------------------------------------------------------------------------------------

    def char(self, byte: int) -> int:
        """Return the character index of a byte offset."""
        return min(byte, len(self.text))

    def slice(self, start: int, stop: int) -> Mapped:
        """Return the mapped text between two byte offsets."""
        return self.text[self.char(start) : self.char(stop)]

    def text_of(self, node: Any) -> Mapped:
        """Return a node's own text."""
        return self.slice(node.start_byte, node.end_byte)

    def outer(self, byte: int) -> int:
        """Return the outer offset of a byte."""
        return self.text.offset(self.char(byte))

    def outer_end(self, node: Any) -> int:
        """Return the outer offset just after a node."""
        last = self.char(node.end_byte) - 1
        return self.text.offset(last) + 1 if last >= 0 else self.text.at

    # -- statements -----------------------------------------------------------------------------------------------

    def run(self, state: State) -> list[State]:
        """Walk the whole script; functions that nobody calls are walked at the end with unknown arguments."""
        states = self.block(self.root.children, [state])
        last = states[-1]
        for name, (node, owner) in list(last.functions.items()):
            if owner is self and name not in self.called:
                inner = last.copy()
                inner.positional = None
                self.call(name, node, inner, None)
        return states

    def block(self, nodes: list[Any], states: list[State]) -> list[State]:
        """Run statements in order for every path."""
        for node in nodes:
            if not node.is_named or node.type == "comment":
                continue
            following: list[State] = []
            for state in states:
                if state.dead:
                    following.append(state)
                else:
                    following.extend(self.statement(node, state))
            # Only a fork can make paths; elsewhere there is nothing to join.
            states = _joined(following) if len(following) > len(states) else following
        return states

    def statement(self, node: Any, state: State) -> list[State]:
        """Run one statement; return the paths that go on."""
        self.out.spend()
        kind = node.type
        if kind == "command":
            self.command(node, state, None)
        elif kind == "redirected_statement":
            return self.redirected(node, state)
        elif kind == "variable_assignment":
            self.assignment(node, state)
        elif kind in ("variable_assignments",):
            for child in node.named_children:
                self.assignment(child, state)
        elif kind == "declaration_command":
            self.declaration(node, state)
        elif kind == "unset_command":
            for child in node.named_children:
                state.variables.pop(self.text_of(child).text, None)
        elif kind == "function_definition":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name is not None and body is not None:
                state.functions[self.text_of(name).text] = (body, self)
        elif kind == "if_statement":
            return self.conditional(node, state)
        elif kind == "case_statement":
            return self.case(node, state)
        elif kind in ("for_statement", "select_statement"):
            return self.loop(node, state)
        elif kind in ("while_statement", "c_style_for_statement"):
            self.forget_counter(node, state)
            return self.block(node.named_children, [state])
        elif kind == "subshell":
            self.block(node.children, [state.copy()])
        elif kind in ("list", "pipeline", "program", "compound_statement", "do_group", "negated_command", "ERROR"):
            return self.sequence(node, state)
        elif kind in (
            "test_command",
            "herestring_redirect",
            "file_redirect",
            "heredoc_body",
            "regex",
            "string",
            "word",
        ):
            pass
        else:
            return self.block(node.named_children, [state])
        return [state]

    def sequence(self, node: Any, state: State) -> list[State]:
        """Run ``a && b``, ``a | b``, ``{ a; b; }``: all parts are taken to run, but for an ``exit`` in a list."""
        states = self.block(node.children, [state])
        if node.type in ("list", "pipeline", "ERROR"):
            for one in states:
                one.dead = False
        return states

    def command(self, node: Any, state: State, heredoc: Mapped | None) -> None:
        """Run one simple command."""
        prefix: list[tuple[str, Variable]] = []
        words: list[Word] = []
        inner = state
        for child in node.children:
            if child.type == "variable_assignment":
                if inner is state:
                    inner = state.copy()
                name, variable, _ = self.assigned(child, state)
                if name:
                    exported = Variable(variable.words, variable.at, variable.end, variable.array, True, "prefix")
                    prefix.append((name, exported))
            elif child.type == "command_name":
                for part in child.children or [child]:
                    words.extend(expand(self, part, state))
            elif child.type in ("herestring_redirect", "file_redirect", "heredoc_redirect"):
                continue
            elif len(words) > MAX_WORDS:
                break
            elif child.is_named or child.type in ("=", "==", "=~"):
                words.extend(expand(self, child, state))
        if not words:
            for name, variable in prefix:
                state.assign(name, Variable(variable.words, variable.at, variable.end, variable.array))
            return
        run_command(self, node, words, prefix, state, heredoc)

    def redirected(self, node: Any, state: State) -> list[State]:
        """Run a command with redirections; keep what a here-document writes."""
        heredoc = heredoc_of(self, node, state)
        target = file_written(self, node, state)
        body = node.child_by_field_name("body")
        states = [state]
        if heredoc is not None:
            keep_heredoc(self, node, heredoc, target, state)
        if body is not None:
            if body.type == "command":
                self.command(body, state, heredoc)
            else:
                states = self.statement(body, state)
        for child in node.named_children:
            if child.type == "heredoc_redirect":
                for part in child.named_children:
                    if part.type in ("pipeline", "command", "list", "redirected_statement"):
                        states = self.block([part], states)
        return states

    def assigned(self, node: Any, state: State) -> tuple[str, Variable, bool]:
        """Read ``NAME=value``, ``NAME+=value``, ``NAME=(a b)``, ``NAME[0]=x``."""
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        name = self.text_of(name_node).text if name_node is not None else ""
        at, end = self.outer(node.start_byte), self.outer_end(node)
        append = any(c.type == "+=" for c in node.children)
        subscript = ""
        if "[" in name:
            name, _, subscript = name.partition("[")
        if value_node is None or value_node.end_byte == value_node.start_byte:
            # `IMAGE=` (and `IMAGE=<name>`, which the shell reads as a redirection) is a gap that the reader is to fill.
            gap = (
                hole(end)
                if node.parent is None or node.parent.type != "command"
                else self.slice(node.end_byte, node.end_byte)
            )
            return name, Variable((Word(gap, end, end),), at, end), append
        if value_node.type == "array":
            words: list[Word] = []
            for child in value_node.named_children:
                if child.type not in ("comment",):
                    words.extend(expand(self, child, state))
            return name, Variable(tuple(words), at, end, array=True), append
        value = expand_one(self, value_node, state)
        if subscript:
            return name, Variable((value,), at, end, array=True), True
        return name, Variable((value,), at, end), append

    def assignment(self, node: Any, state: State, exported: bool = False) -> None:
        """Run an assignment statement."""
        if node.type != "variable_assignment":
            return
        name, variable, append = self.assigned(node, state)
        if exported:
            variable = Variable(variable.words, variable.at, variable.end, variable.array, True, "export")
        state.assign(name, variable, append=append)
        self.scan(node, state)

    def scan(self, node: Any, state: State) -> None:
        """Nothing to run in a plain assignment: substitutions were looked into while it was expanded."""

    def declaration(self, node: Any, state: State) -> None:
        """Run ``export``, ``declare``, ``local``, ``readonly``, ``typeset``."""
        keyword = node.children[0].type if node.children else ""
        options = [self.text_of(c).text for c in node.named_children if c.type == "word"]
        exports = keyword == "export" or any(o.startswith("-") and "x" in o for o in options)
        unexport = keyword == "export" and any(o.startswith("-n") for o in options)
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.assignment(child, state, exports)
            elif child.type == "variable_name":
                name = self.text_of(child).text
                known = state.variables.get(name)
                if known is not None and (exports or unexport):
                    origin = "assignment" if unexport else "export"
                    changed = Variable(known.words, known.at, known.end, known.array, not unexport, origin)
                    state.variables[name] = changed
                elif known is None and exports:
                    at = self.outer(child.start_byte)
                    unknown = Word(hole(at), at, self.outer_end(child))
                    state.variables[name] = Variable((unknown,), at, at, exported=True, origin="export")
            elif child.type in ("string", "concatenation", "raw_string") and exports:
                # export "A=b" / export "$NAME"=b
                for word in expand(self, child, state):
                    name, _, _ = word.text.partition("=")
                    if re.fullmatch(r"\w+", name) and "=" in word.text:
                        value = word.value[len(name) + 1 :]
                        inner = Word(value, value.at, word.end, quoted=True)
                        variable = Variable((inner,), word.start, word.end, exported=True, origin="export")
                        state.assign(name, variable)

    # -- branches -------------------------------------------------------------------------------------------------

    def conditional(self, node: Any, state: State) -> list[State]:
        """Fork over ``if``/``elif``/``else``."""
        branches: list[list[Any]] = [[]]
        key = ""
        has_else = False
        conditions = set()
        for condition in node.children_by_field_name("condition"):
            conditions.add(condition.id)
            key += self.text_of(condition).text
        for child in node.children:
            if child.type == "elif_clause":
                branches.append(child.children)
                key += "|" + self.text_of(child).text[:200]
            elif child.type == "else_clause":
                branches.append(child.children)
                has_else = True
            elif child.id not in conditions:
                branches[0].append(child)
        if not has_else:
            branches.append([])
        for condition in node.children_by_field_name("condition"):
            self.block([condition], [state])
        return self.fork("if " + key, branches, state)

    def case(self, node: Any, state: State) -> list[State]:
        """Fork over the items of ``case``."""
        value = node.child_by_field_name("value")
        branches: list[list[Any]] = []
        catch_all = False
        for child in node.named_children:
            if child.type != "case_item":
                continue
            patterns = child.children_by_field_name("value")
            ids = {p.id for p in patterns}
            branches.append([c for c in child.children if c.id not in ids])
            catch_all = catch_all or any(self.text_of(p).text == "*" for p in patterns)
        if not catch_all:
            branches.append([])
        key = "case " + (self.text_of(value).text if value is not None else "") + f"@{len(branches)}"
        return self.fork(key, branches, state)

    def fork(self, key: str, branches: list[list[Any]], state: State) -> list[State]:
        """Run each branch on a copy; on a path that has answered the same question, only that answer.

        In helpers that start nothing, and in scripts that have cost much already, all branches are run one after the
        other on one path instead.
        """
        key = " ".join(key.split())
        if key in state.decisions and state.decisions[key] < len(branches):
            return self.block(branches[state.decisions[key]], [state])
        if len(branches) > 40:
            branches = branches[:40]
        if self.linear or self.out.steps > MANY_STEPS:
            states = [state]
            for branch in branches:
                states = self.block(branch, states)
                for one in states:
                    one.dead = False
            return states
        results: list[State] = []
        for number, branch in enumerate(branches):
            path = state.copy()
            path.decisions[key] = number
            results.extend(self.block(branch, [path]))
        return _joined(results)

    def loop(self, node: Any, state: State) -> list[State]:
        """Run a ``for`` body for the first few known values."""
        name_node = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        name = self.text_of(name_node).text if name_node is not None else ""
        words: list[Word] = []
        for child in node.children_by_field_name("value"):
            words.extend(expand(self, child, state))
        at = self.outer(node.start_byte)
        if not words or any(w.spread or "{" in w.text or "*" in w.text for w in words):
            words = [Word(hole(at), at, at)]
        states = [state]
        for word in words[: 1 if self.out.steps > MANY_STEPS else MAX_LOOP]:
            for one in states:
                one.dead = False
                one.assign(name, Variable((word,), word.start, word.end))
            states = self.block(body.children if body is not None else [], states)
        for one in states:
            one.dead = False
        return states

    def forget_counter(self, node: Any, state: State) -> None:
        """A C-style counter has no single value."""
        for child in node.named_children:
            if child.type == "variable_assignment" and (name := child.child_by_field_name("name")) is not None:
                at = self.outer(child.start_byte)
                state.assign(self.text_of(name).text, Variable((Word(hole(at), at, at),), at, at))
        if node.type == "c_style_for_statement":
            for name in re.findall(r"\(\(\s*(\w+)\s*=", self.text_of(node).text[:200]):
                at = self.outer(node.start_byte)
                state.assign(name, Variable((Word(hole(at), at, at),), at, at))

    # -- nested ---------------------------------------------------------------------------------------------------

    def call(self, name: str, body: Any, state: State, arguments: tuple[Word, ...] | None) -> None:
        """Run a function's body with its arguments; assignments stay, as in the shell."""
        self.counts[name] = self.counts.get(name, 0) + 1
        if self.calls >= MAX_CALLS or self.counts[name] > MAX_REPEATS:
            return
        helper = not self.relevant(name, body, state, set())
        self.linear += helper
        self.called.add(name)
        self.calls += 1
        self.names.append(name)
        saved = state.positional
        state.positional = arguments
        results = self.block(body.children, [state])
        last = next((s for s in reversed(results) if not s.dead), results[-1])
        if last is not state:
            state.variables, state.files, state.functions = last.variables, last.files, last.functions
            state.env_complete = last.env_complete
        state.positional, state.dead = saved, False
        self.names.pop()
        self.calls -= 1
        self.linear -= helper

    def relevant(self, name: str, body: Any, state: State, seen: set[str]) -> bool:
        """Whether a function may start a server: it says a trigger word, runs its arguments, or calls one that does."""
        seen.add(name)
        text = self.text_of(body).text
        if trigger(text) or "$@" in text or "eval" in text:
            return True
        for other, (inner, owner) in state.functions.items():
            if other not in seen and owner is self and other in text and self.relevant(other, inner, state, seen):
                return True
        return False

    def run_nested(self, node: Any, state: State) -> None:
        """Look for launches inside a substitution."""
        self.block(node.named_children, [state.copy()])

    def run_text(self, text: Mapped, state: State, source: str = "") -> list[State]:
        """Run a text that is itself shell (``bash -c``, ``eval``, ``ssh host '...'``)."""
        if self.depth >= 5:
            return [state]
        script = Script(self.out, text, source or self.source, self.depth + 1)
        script.extra_words = self.extra_words
        script.names = list(self.names)
        return script.run(state)

    def substitution_text(self, node: Any, state: State) -> Mapped | None:
        """Return the text of ``$(...)`` when it only repeats known text."""
        children = [c for c in node.named_children if c.type != "comment"]
        if len(children) != 1:
            return None
        child = children[0]
        if child.type == "redirected_statement":
            if child.child_by_field_name("body") is None:
                redirect = child.child_by_field_name("redirect")
                target = redirect.child_by_field_name("destination") if redirect is not None else None
                return self._file(expand_one(self, target, state).text, state) if target is not None else None
            heredoc = heredoc_of(self, child, state)
            text = self.text_of(child.child_by_field_name("body")).text.strip()
            return heredoc if heredoc is not None and text in ("cat", "cat -") else None
        if child.type == "file_redirect":
            target = child.child_by_field_name("destination")
            return self._file(expand_one(self, target, state).text, state) if target is not None else None
        if child.type != "command":
            return None
        words: list[Word] = []
        for part in child.children:
            if part.type == "command_name":
                words.extend(w for p in part.children for w in expand(self, p, state))
            elif part.is_named and part.type != "variable_assignment":
                words.extend(expand(self, part, state))
        if not words:
            return None
        name, rest = words[0].text, words[1:]
        if name == "echo":
            rest = [w for w in rest if w.text not in ("-n", "-e", "-ne", "-en", "-E")]
            return join([w.value for w in rest], at=rest[0].value.at, glue=" ") if rest else None
        if name == "printf" and len(rest) == 2 and rest[0].text in ("%s", "%s\\n", "%s\n"):
            return rest[1].value
        if name == "printf" and len(rest) == 1 and "%" not in rest[0].text:
            return rest[0].value
        if name == "cat" and len(rest) == 1:
            return self._file(rest[0].text, state)
        return None

    def _file(self, name: str, state: State) -> Mapped | None:
        for path, content in reversed(state.files):
            if path == name:
                return content
        return None

    def words_near(self, first: int, last: int) -> tuple[Value, ...]:
        """Return the prose around a launch that stands on the outer lines first to last."""
        words = file_words(self.out) + comments_near(self.out, first, last) + list(self.extra_words)
        words.extend(v for v in self.said if first - 10 <= v.location.line <= last + 3)
        for name in self.names:
            words.append(Value(text=name, location=self.out.location(self.text.at), raw=name))
        return tuple(dict.fromkeys(words))


def _joined(states: list[State]) -> list[State]:
    """Join paths that cannot be told apart, drop dead ones while others live, keep at most ``MAX_PATHS``."""
    if len(states) == 1:
        return states
    alive = [s for s in states if not s.dead]
    if not alive:
        return states[-1:]
    unique: dict[tuple[object, ...], State] = {}
    for state in alive:
        mark = state.fingerprint()
        if mark in unique:
            kept = unique[mark]
            kept.decisions = {k: v for k, v in kept.decisions.items() if state.decisions.get(k) == v}
            kept.expanded |= state.expanded
        else:
            unique[mark] = state
    paths = list(unique.values())
    if len(paths) > MAX_PATHS:
        # The first and the last paths are the extremes of "nothing taken" and "everything taken".
        half = MAX_PATHS // 2
        paths = paths[:half] + paths[-half:]
    return paths


def read_shell(out: Collector, text: Mapped, source: str = "shell", extra: tuple[Value, ...] = ()) -> State:
    """Read a shell text and return the state at its end."""
    script = Script(out, text, source)
    script.extra_words = list(extra)
    return script.run(State())[-1]
