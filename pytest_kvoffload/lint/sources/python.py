"""Python files: engines made in code, servers started as processes, and environment set from code.

The text is parsed with :mod:`ast` and never imported or executed.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import replace

from pytest_kvoffload.lint.model import Config, EnvVar, Flag, Launch, Value
from pytest_kvoffload.lint.sources.argv import (
    Surroundings,
    build_launch,
    find_program,
    looks_like_vllm_arguments,
)
from pytest_kvoffload.lint.sources.collect import Collector, Word, comments_near, file_words
from pytest_kvoffload.lint.sources.formats import trigger
from pytest_kvoffload.lint.sources.py_text import PyText
from pytest_kvoffload.lint.sources.py_values import (
    Evaluator,
    PyValue,
    Scope,
    as_words,
    config_node,
    dotted,
    is_environ,
    json_text,
)
from pytest_kvoffload.lint.sources.shell import Script
from pytest_kvoffload.lint.sources.shell_state import State, env_var
from pytest_kvoffload.lint.sources.text import HOLE, Mapped, constant

_ENGINES = {
    "LLM",
    "EngineArgs",
    "AsyncEngineArgs",
    "LLMEngine",
    "AsyncLLMEngine",
    "AsyncLLM",
    "VllmRunner",
    "vllm_runner",
}
_CONFIGS = {"kv_transfer_config": "kv-transfer-config", "kv_events_config": "kv-events-config"}
_SHELL_CALLS = {
    "run", "Popen", "call", "check_call", "check_output", "system", "popen", "getoutput", "getstatusoutput",
    "create_subprocess_shell", "create_subprocess_exec", "exec_command", "run_command", "execute", "sh", "spawn",
    "execvp", "execv", "execvpe", "start_process", "run_cmd", "exec_run", "launch", "start_server",
}  # fmt: skip
_SAYING = {"print", "info", "debug", "warning", "error", "exception", "add_argument", "write", "echo", "log", "join"}


def read_python(out: Collector, text: Mapped) -> None:
    """Read one Python text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.text)
    except (SyntaxError, ValueError) as failure:
        line = getattr(failure, "lineno", None) or 1
        where = text.offset(PyText(text).index(line, 0))
        out.add_unresolved(where, f"the Python could not be parsed: {getattr(failure, 'msg', failure)}")
        return
    Reader(out, text).module(tree)


class Reader:
    """Walks one module in file order."""

    def __init__(self, out: Collector, text: Mapped) -> None:
        self.out = out
        self.source = PyText(text)
        self.evaluate = Evaluator(out, self.source)
        self.foreign: set[str] = set()
        """Names that a package other than vLLM gave (``LLM`` of another library)."""
        self.env: list[EnvVar] = []
        self.used_configs: set[int] = set()
        self.emitted: set[int] = set()
        self.function = ""

    def module(self, tree: ast.Module) -> None:
        """Read all statements; then the lists and configurations that no call has taken."""
        scope = Scope()
        self.body(tree.body, scope)

    def body(self, statements: list[ast.stmt], scope: Scope) -> None:
        """Walk statements in order; both branches of a condition count as taken."""
        for statement in statements:
            self.out.spend()
            self.statement(statement, scope)

    def statement(self, node: ast.stmt, scope: Scope) -> None:
        """Walk one statement."""
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self.imported(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.definition(node, scope)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            self.assign(node, scope)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            pass
        else:
            for field in ast.iter_fields(node):
                self._field(field[1], scope)
            if isinstance(node, ast.Return) and node.value is not None:
                self.left_over(self.evaluate.value(node.value, scope))

    def _field(self, value: object, scope: Scope) -> None:
        if isinstance(value, list):
            if value and all(isinstance(v, ast.stmt) for v in value):
                self.body(value, scope)
            else:
                for item in value:
                    self._field(item, scope)
        elif isinstance(value, ast.expr):
            self.expression(value, scope)
        elif isinstance(value, (ast.excepthandler, ast.match_case, ast.withitem)):
            for _, inner in ast.iter_fields(value):
                self._field(inner, scope)

    def imported(self, node: ast.Import | ast.ImportFrom) -> None:
        """Remember names that are another library's."""
        module = getattr(node, "module", None) or ""
        for alias in node.names:
            name = alias.asname or alias.name
            if isinstance(node, ast.ImportFrom) and alias.name in _ENGINES and "vllm" not in module and module:
                self.foreign.add(name)

    def definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: Scope) -> None:
        """Walk a body in a scope of its own; parameters hide outer names, defaults are defaults."""
        inner = Scope(scope)
        for decorator in node.decorator_list:
            self.expression(decorator, scope)
        if not isinstance(node, ast.ClassDef):
            arguments = node.args
            named = [*arguments.posonlyargs, *arguments.args]
            for argument in [*named, *arguments.kwonlyargs]:
                inner.names.pop(argument.arg, None)
            pairs = list(zip(named[len(named) - len(arguments.defaults) :], arguments.defaults, strict=False))
            pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
            for argument, default in pairs:
                value = self.evaluate.value(default, scope)
                if value.kind in ("text", "number"):
                    text = Mapped(value.text.text, value.text.offsets, value.text.at, True)
                    inner.names[argument.arg] = PyValue(value.kind, text, value.end)
        saved, self.function = self.function, node.name
        before = set(inner.names)
        self.body(node.body, inner)
        for name, value in inner.names.items():
            if name not in before:
                self.left_over(value)
        self.function = saved
        if isinstance(node, ast.ClassDef):
            for name, value in inner.names.items():
                scope.names.setdefault(f"self.{name}", value)

    def assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, scope: Scope) -> None:
        """Bind names; ``os.environ[...] = ...`` and ``cmd += [...]`` included."""
        if node.value is None:
            return
        self.expression(node.value, scope)
        value = self.evaluate.value(node.value, scope)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Subscript):
                self.subscript(target, value, scope)
                continue
            name = dotted(target) if isinstance(target, (ast.Name, ast.Attribute)) else ""
            if not name:
                continue
            if isinstance(node, ast.AugAssign):
                self._append(scope, name, value)
            else:
                scope.names[name] = value

    def _append(self, scope: Scope, name: str, value: PyValue) -> None:
        old = scope.names.get(name)
        if old is None or old.kind not in ("list", "text"):
            return
        if old.kind == "list" and value.kind == "list":
            merged = PyValue("list", old.text, value.end, [*old.items, *value.items])
            merged.complete = old.complete and value.complete
            scope.names[name] = merged
        elif old.kind == "list":
            old.complete = False
        else:
            from pytest_kvoffload.lint.sources.text import hole, join

            addition = value.text if value.kind == "text" else hole(value.at)
            scope.names[name] = PyValue("text", join([old.text, addition], at=old.at), value.end)

    def subscript(self, target: ast.Subscript, value: PyValue, scope: Scope) -> None:
        """``os.environ[NAME] = value`` and ``env[NAME] = value``."""
        key = self.evaluate.value(target.slice, scope)
        if key.kind != "text" or HOLE in key.text.text:
            return
        if is_environ(target.value):
            self.set_env(key.text.text, self.source.at(target), value, "os.environ")
            return
        base = scope.names.get(dotted(target.value))
        if base is not None and base.kind == "dict":
            base.members.append((key.text.text, self.source.at(target), value))

    def set_env(self, name: str, at: int, value: PyValue, origin: str) -> None:
        """Note one variable of the process's own environment."""
        word = Word(value.text, value.at, max(value.end, value.at), quoted=value.kind == "text")
        self.env.append(env_var(self.out, name, at, word, origin))

    # -- calls ----------------------------------------------------------------------------------------------------

    def expression(self, node: ast.expr, scope: Scope) -> None:
        """Visit all calls of an expression, innermost first."""
        for child in ast.walk(node):
            self.out.spend()
            if isinstance(child, ast.Call):
                self.call(child, scope)
            elif isinstance(child, ast.Dict):
                self.dictionary(child, scope)
            elif isinstance(child, ast.Lambda):
                continue

    def call(self, node: ast.Call, scope: Scope) -> None:
        """Read one call."""
        name = dotted(node.func)
        last = name.rsplit(".", 1)[-1] or getattr(node.func, "attr", "")
        if name.startswith(("os.environ.", "environ.")) or last == "putenv":
            self.environ_call(node, last, scope)
        elif last in _ENGINES and last not in self.foreign:
            self.engine(node, scope)
        elif last in ("append", "extend", "insert") and isinstance(node.func, ast.Attribute):
            self.grow(node, node.func, last, scope)
        elif last == "kvoffload" and "mark" in name:
            self.mark(node, scope)
        elif last in _CONFIG_NAMES and last not in self.foreign:
            self.loose_config(node, scope)
        elif any(k.arg in ("engine_kwargs", "llm_kwargs") for k in node.keywords):
            self.ray(self.evaluate._keywords(node, scope, 0, False), node)
        elif last not in _SAYING:
            self.process(node, last, scope)

    def grow(self, node: ast.Call, func: ast.Attribute, last: str, scope: Scope) -> None:
        """``cmd.append(x)``, ``cmd.extend([...])``."""
        old = scope.names.get(dotted(func.value))
        if old is None or old.kind != "list" or not node.args:
            return
        value = self.evaluate.value(node.args[-1], scope)
        if last == "extend":
            if value.kind == "list":
                old.items.extend(value.items)
                old.complete = old.complete and value.complete
            else:
                value.kind = "spread"
                old.items.append(value)
        elif last == "append":
            old.items.append(value)

    def environ_call(self, node: ast.Call, last: str, scope: Scope) -> None:
        """``os.environ.update(...)``, ``setdefault``, ``os.putenv``."""
        if last in ("setdefault", "putenv") and len(node.args) == 2:
            key = self.evaluate.value(node.args[0], scope)
            if key.kind == "text":
                value = self.evaluate.value(node.args[1], scope)
                self.set_env(key.text.text, self.source.at(node), value, "os.environ")
        elif last == "update":
            values = self.evaluate._keywords(node, scope, 0, False)
            for name, at, value in values.members:
                self.set_env(name, at, value, "os.environ")

    def engine(self, node: ast.Call, scope: Scope) -> None:
        """``LLM(...)``, ``EngineArgs(...)``: keyword arguments are flags."""
        arguments = self.evaluate._keywords(
            ast.Call(func=node.func, args=[], keywords=node.keywords, **_place(node)), scope, 0, False
        )
        if not arguments.members and not node.args and arguments.complete:
            return
        model = None
        if node.args:
            first = self.evaluate.value(node.args[0], scope)
            model = self.out.value(first.text, end=first.end) if first.kind in ("text", "unknown") else None
        self.out.add_launch(self.keyword_launch(arguments, node, "python", model))

    def keyword_launch(self, arguments: PyValue, node: ast.AST, source: str, model: Value | None) -> Launch:
        """Make a launch of keyword arguments."""
        flags: list[Flag] = []
        configs: list[Config] = []
        for name, at, value in arguments.members:
            flag_name = "--" + name.replace("_", "-")
            location = self.out.location(at)
            if name in _CONFIGS:
                if value.kind == "none":
                    continue
                tree, text, error = config_node(self.out, value)
                kind = _CONFIGS[name]
                configs.append(Config(kind=kind, node=tree, location=tree.location, text=text, error=error))  # type: ignore[arg-type]
                self.used_configs.add(value.at)
                flags.append(Flag(name=flag_name, location=location))
            elif value.kind == "boolean":
                on = value.text.text == "True"
                flags.append(Flag(name=flag_name if on else "--no-" + flag_name[2:], location=location))
            elif value.kind in ("dict", "list"):
                flags.append(Flag(name=flag_name, location=location, value=self.out.value(json_text(value))))
            elif value.kind != "none":
                content = self.out.value(value.text, start=value.at, end=value.end, quoted=value.kind == "text")
                flags.append(Flag(name=flag_name, location=location, value=content))
                if name == "model":
                    model = content
        return Launch(
            product="vllm",
            location=self.out.location(self.source.at(node)),
            source=source,
            flags=tuple(flags),
            env=(*self.out.inherited_env, *self.env),
            configs=tuple(configs),
            limits=self.out.limits,
            image=self.out.image,
            model=model,
            vllm_version=self.out.versions.get("vllm"),
            lmcache_version=self.out.versions.get("lmcache"),
            words=self.words(node),
            complete=arguments.complete,
        )

    def words(self, node: ast.AST) -> tuple[Value, ...]:
        """Return the prose around a node: comments, the enclosing function's name."""
        first = self.out.location(self.source.at(node)).line
        last = self.out.location(self.source.end(node)).line
        words = file_words(self.out) + comments_near(self.out, first, last, header=3)
        if self.function:
            words.append(Value(text=self.function, location=self.out.location(self.source.at(node)), raw=self.function))
        return tuple(dict.fromkeys(words))

    def loose_config(self, node: ast.Call, scope: Scope) -> None:
        """A ``KVTransferConfig(...)`` that no engine call of this file takes."""
        value = self.evaluate.value(node, scope)
        if value.kind in ("dict", "text") and value.config and (value.members or value.kind == "text"):
            tree, text, error = config_node(self.out, value)
            kind = "kv-events-config" if "Events" in dotted(node.func) else "kv-transfer-config"
            self.out.loose_configs.append(
                Config(kind=kind, node=tree, location=tree.location, text=text, error=error)  # type: ignore[arg-type]
            )

    def dictionary(self, node: ast.Dict, scope: Scope) -> None:
        """``{"engine_kwargs": {...}, "runtime_env": {...}}``."""
        keys = [k.value for k in node.keys if isinstance(k, ast.Constant)]
        if "engine_kwargs" in keys:
            self.ray(self.evaluate.value(node, scope), node)

    def ray(self, arguments: PyValue, node: ast.AST) -> None:
        """Ray's LLM configuration."""
        engine = arguments.get("engine_kwargs") or arguments.get("llm_kwargs")
        if engine is None or engine.kind != "dict":
            return
        saved = list(self.env)
        runtime = arguments.get("runtime_env")
        variables = runtime.get("env_vars") if runtime is not None else None
        for name, at, value in variables.members if variables is not None else ():
            self.set_env(name, at, value, "runtime_env")
        model = None
        loading = arguments.get("model_loading_config")
        for key in ("model_source", "model_id"):
            found = loading.get(key) if loading is not None else arguments.get(key)
            if model is None and found is not None and found.kind == "text":
                model = self.out.value(found.text)
        launch = self.keyword_launch(engine, node, "ray", model)
        self.out.add_launch(replace(launch, env_complete=False))
        self.env = saved

    def mark(self, node: ast.Call, scope: Scope) -> None:
        """``@pytest.mark.kvoffload(...)`` of our own test files."""
        from pytest_kvoffload.lint.sources.own import launch_of_mark

        arguments = self.evaluate._keywords(node, scope, 0, False)
        launch_of_mark(self, arguments, node)

    # -- processes ------------------------------------------------------------------------------------------------

    def process(self, node: ast.Call, last: str, scope: Scope) -> None:
        """A list of words, or a command line as text, given to a call."""
        values = [*node.args, *(k.value for k in node.keywords if k.arg in ("args", "cmd", "command", "arguments"))]
        env = self._process_env(node, scope)
        plain = [self.evaluate.value(v, scope) for v in values if not isinstance(v, ast.Starred)]
        if last in ("create_subprocess_exec", "execvp", "execv", "execlp", "spawn"):
            joined = PyValue("list", constant("", self.source.at(node)), self.source.end(node), [])
            for value in plain:
                joined.items.extend(value.items if value.kind == "list" else [value])
            joined.complete = not any(isinstance(v, ast.Starred) for v in values)
            if self.command(joined, node, env):
                return
        for value in plain:
            if value.kind == "list" and self.command(value, node, env):
                continue
            if value.kind == "text" and last in _SHELL_CALLS and trigger(value.text.text):
                self.shell(value, env)
        if last == "RemoteOpenAIServer" or last.endswith(("Server", "server")):
            self._server_class(node, plain, env)

    def _server_class(self, node: ast.Call, plain: list[PyValue], env: tuple[EnvVar, ...]) -> None:
        """``RemoteOpenAIServer(model, [flags])`` and its like: the list alone is vLLM's arguments."""
        for value in plain:
            words = as_words(value) if value.kind == "list" else []
            if words and find_program(words) is None and looks_like_vllm_arguments(words):
                launch = build_launch(self.out, "vllm", words[0], words, self.around(node, env))
                first = plain[0]
                model = launch.model
                if model is None and first.kind in ("text", "unknown"):
                    model = self.out.value(first.text)
                self.emitted.add(value.at)
                self.out.add_launch(replace(launch, model=model))

    def _process_env(self, node: ast.Call, scope: Scope) -> tuple[EnvVar, ...]:
        keyword = next((k for k in node.keywords if k.arg in ("env", "env_dict", "environment")), None)
        if keyword is None:
            return tuple(self.env)
        value = self.evaluate.value(keyword.value, scope)
        variables = list(self.env) if value.environ or value.kind != "dict" else []
        if value.kind == "dict":
            for name, at, inner in value.members:
                word = Word(inner.text, inner.at, max(inner.end, inner.at), quoted=inner.kind == "text")
                variables.append(env_var(self.out, name, at, word, "subprocess env"))
        return tuple(variables)

    def around(self, node: ast.AST, env: tuple[EnvVar, ...]) -> Surroundings:
        """Gather what a started process would see."""
        return Surroundings(
            source="python",
            env=(*self.out.inherited_env, *env),
            words=self.words(node),
            limits=self.out.limits,
            image=self.out.image,
            vllm_version=self.out.versions.get("vllm"),
            lmcache_version=self.out.versions.get("lmcache"),
            files=self.out.files,
        )

    def command(self, value: PyValue, node: ast.AST, env: tuple[EnvVar, ...]) -> bool:
        """Read a list as a command line; ``False`` when it starts no server."""
        from pytest_kvoffload.lint.sources.shell_commands import shell_text

        words = as_words(value)
        if len(words) < 2:
            return False
        script = shell_text(words)
        if script is not None and trigger(script.text):
            self.emitted.add(value.at)
            self.shell(PyValue("text", script, script.end), env)
            return True
        name = words[0].text.rsplit("/", 1)[-1]
        if name in ("docker", "podman", "kubectl", "ssh", "srun", "env") and trigger(" ".join(w.text for w in words)):
            from pytest_kvoffload.lint.sources.shell_commands import run_words

            self.emitted.add(value.at)
            run_words(self.out, words, self.around(node, env))
            return True
        found = find_program(words)
        if found is None:
            return False
        start, first, product = found
        if value.at in self.emitted:
            return True
        self.emitted.add(value.at)
        self.out.add_launch(build_launch(self.out, product, words[start], words[first:], self.around(node, env)))
        return True

    def shell(self, value: PyValue, env: tuple[EnvVar, ...]) -> None:
        """Read text that a shell would run."""
        around = Surroundings(source="python", env=(*self.out.inherited_env, *env))
        self.emitted.add(value.at)
        self.out.embedded.append("python")
        try:
            with self.out.inside(around, self.out.image):
                script = Script(self.out, value.text, "shell")
                script.run(State())
        finally:
            self.out.embedded.pop()

    def left_over(self, value: PyValue) -> None:
        """A command that is built and returned, or kept in a variable."""
        if value.at in self.emitted:
            return
        node = ast.Constant(value="", lineno=1, col_offset=0)
        if value.kind == "list" and value.items:
            words = as_words(value)
            found = find_program(words)
            if found:
                start, first, product = found
                self.emitted.add(value.at)
                around = replace(self.around(node, tuple(self.env)), words=self.words_at(value))
                self.out.add_launch(build_launch(self.out, product, words[start], words[first:], around))
        elif value.kind == "text" and re.search(r"\bvllm serve\s|api_server\s+--|launch_server\s+--", value.text.text):
            if len(value.text) < 20_000:
                self.shell(value, tuple(self.env))

    def words_at(self, value: PyValue) -> tuple[Value, ...]:
        """Return the prose around a value."""
        first = self.out.location(value.at).line
        last = self.out.location(value.end).line
        words = file_words(self.out) + comments_near(self.out, first, last, header=3)
        if self.function:
            words.append(Value(text=self.function, location=self.out.location(value.at), raw=self.function))
        return tuple(dict.fromkeys(words))


_CONFIG_NAMES = ("KVTransferConfig", "KVEventsConfig", "from_cli")


def _place(node: ast.AST) -> dict[str, int]:
    return {
        "lineno": getattr(node, "lineno", 1),
        "col_offset": getattr(node, "col_offset", 0),
        "end_lineno": getattr(node, "end_lineno", None) or 1,
        "end_col_offset": getattr(node, "end_col_offset", None) or 0,
    }
