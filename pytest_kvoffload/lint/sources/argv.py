"""A command line, whatever format it came from, to a :class:`Launch`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pytest_kvoffload.lint.model import EnvVar, Flag, Launch, Limits, Product, Value
from pytest_kvoffload.lint.sources.collect import Collector, Word
from pytest_kvoffload.lint.sources.configs import launch_configs
from pytest_kvoffload.lint.sources.images import image_product, image_versions
from pytest_kvoffload.lint.sources.text import HOLE, Mapped

_VLLM_MODULES = re.compile(
    r"^(?:vllm\.entrypoints\.(?:openai\.api_server|api_server|openai\.run_batch|grpc_server)|dynamo\.vllm"
    r"|vllm_ascend\.\S*api_server|aphrodite\.\S+)$"
)
_VLLM_SCRIPTS = re.compile(r"(?:^|/)(?:vllm/)?entrypoints/(?:openai/)?api_server\.py$")
_VLLM_CLI_MODULES = {"vllm.entrypoints.cli.main", "vllm.scripts", "vllm", "vllm.entrypoints.cli"}
_SGLANG_MODULES = re.compile(r"^(?:sglang\.launch_server|sglang_router\.launch_server|dynamo\.sglang)$")
_LMCACHE_MODULES = re.compile(r"^lmcache\.v1\.(?:multiprocess\.(?:http_)?server|server|standalone)(?:\.\w+)?$")
_VLLM_VERBS = {"serve", "run-batch"}
_BENCH = {"latency", "throughput", "startup", "sweep"}
NOT_RUNNING = {
    "echo", "printf", "grep", "egrep", "rg", "pgrep", "pkill", "kill", "killall", "which", "type", "command -v", "man",
    "sed", "awk", "git", "gh", "curl", "wget", "logger", "test", "[", "[[", "pip", "pip3", "apt", "apt-get", "ls",
    "tail", "head", "cat", "tee", "jq", "yq", "mkdir", "touch", "rm", "cp", "mv", "chmod", "log", "info", "warn",
    "error", "die", "fail", "print", "read", "export", "pytest", "wc", "less", "vi", "vim", "nano", "code",
}  # fmt: skip
"""First words whose arguments are text, not a program to start."""

_BOOLEAN_PREFIXES = ("enable-", "disable-", "no-", "trust-remote-code", "enforce-eager", "skip-", "use-", "return-")
_BOOLEANS = {
    "async-scheduling", "headless", "help", "version", "language-model-only", "api-server-count-auto",
    "data-parallel-hybrid-lb", "data-parallel-external-lb", "multi-step-stream-outputs", "calculate-kv-scales",
    "fully-sharded-loras", "no-enable-log-requests", "allow-credentials", "log-requests", "is-embedding",
    "engine-use-ray", "worker-use-ray", "generate", "interleave-mm-strings", "log-config-file-none", "numa-bind",
    "kv-sharing-fast-prefill", "allow-deprecated-quantization", "hicache-debug", "speculative-disable-by-default",
}  # fmt: skip
_VALUED_EXCEPTIONS = {"use-tqdm-on-load", "enable-prefix-caching-hash", "skip-tokenizer-init-mode"}

DISTINCTIVE = re.compile(r"^--(?:kv[-_]transfer[-_]config|kv[-_]offloading[-_](?:size|backend)|cpu[-_]offload[-_]gb)")
"""Flags that no other program has: they make a command a vLLM launch even when its program is unknown."""

_VLLM_ARGS = re.compile(
    r"^--(?:kv[-_](?:transfer|events)[-_]config|kv[-_]offloading[-_]|cpu[-_]offload[-_]gb|swap[-_]space|"
    r"tensor[-_]parallel[-_]size|max[-_]model[-_]len|gpu[-_]memory[-_]utilization|(?:no-)?enable[-_]prefix[-_]caching|"
    r"served[-_]model[-_]name|max[-_]num[-_](?:seqs|batched[-_]tokens)|enable[-_]chunked[-_]prefill)"
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What stands around a command line: set by the reader, used to fill the launch."""

    source: str
    env: tuple[EnvVar, ...] = ()
    words: tuple[Value, ...] = ()
    limits: Limits = field(default_factory=Limits)
    image: Value | None = None
    vllm_version: Value | None = None
    lmcache_version: Value | None = None
    replicas: int = 1
    complete: bool = True
    env_complete: bool = True
    files: tuple[tuple[str, Mapped], ...] = ()
    """Files written by the same text (heredocs, ConfigMaps): name and content."""


def find_program(words: Sequence[Word]) -> tuple[int, int, Product] | None:
    """Find a server start in the words: index of the program, index of its first argument, product."""
    for index, word in enumerate(words):
        text = word.text
        if word.spread or not text:
            continue
        base = text.rsplit("/", 1)[-1]
        following = [w.text for w in words[index + 1 : index + 4]]
        nxt = following[0] if following else ""
        if base == "vllm":
            if nxt in _VLLM_VERBS:
                return index, index + 2, "vllm"
            if nxt == "bench" and len(following) > 1 and following[1] in _BENCH:
                return index, index + 3, "vllm"
        if base == "lmcache" and nxt == "server":
            return index, index + 2, "lmcache-server"
        if base in ("lmcache_server", "lmcache-server"):
            return index, index + 1, "lmcache-server"
        if base == "sglang" and nxt == "serve":
            return index, index + 2, "sglang"
        if _VLLM_SCRIPTS.search(text):
            return index, index + 1, "vllm"
        if text == "-m" or (text.startswith("-m") and "." in text):
            module, first = (nxt, index + 2) if text == "-m" else (text[2:], index + 1)
            start = _program_start(words, index)
            if _VLLM_MODULES.match(module):
                return start, first, "vllm"
            if module in _VLLM_CLI_MODULES and first < len(words) and words[first].text in _VLLM_VERBS:
                return start, first + 1, "vllm"
            if _SGLANG_MODULES.match(module):
                return start, first, "sglang"
            if _LMCACHE_MODULES.match(module):
                return start, first, "lmcache-server"
    return None


def _program_start(words: Sequence[Word], index: int) -> int:
    """Go back from ``-m`` over the interpreter's own options to the interpreter."""
    start = index
    while start > 0 and words[start - 1].text.startswith("-") and index - start < 4:
        start -= 1
    return max(start - 1, 0)


def looks_like_vllm_arguments(words: Sequence[Word]) -> bool:
    """Whether the words could only be vLLM's own arguments."""
    return any(_VLLM_ARGS.match(w.text) for w in words)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Command-line arguments, taken apart."""

    flags: tuple[Flag, ...]
    positionals: tuple[Word, ...]
    complete: bool
    spreads: tuple[Word, ...]


def parse_arguments(out: Collector, words: Sequence[Word]) -> Arguments:
    """Split words into flags and positionals the way argparse does, without knowing every flag's arity."""
    flags: list[Flag] = []
    positionals: list[Word] = []
    spreads: list[Word] = []
    index = 0
    while index < len(words):
        out.spend()
        word = words[index]
        index += 1
        text = word.text
        if word.spread:
            spreads.append(word)
            continue
        if text == "--":
            continue
        if not _is_flag(text):
            positionals.append(word)
            continue
        location = out.location(word.start)
        if "=" in text and text.startswith("-"):
            cut = text.index("=")
            value = word.value[cut + 1 :]
            inner = out.value(value, start=value.at, end=word.end, quoted=word.quoted)
            flags.append(Flag(name=text[:cut], location=location, value=inner, joined=True))
            continue
        following = words[index] if index < len(words) else None
        if following is not None and _takes(text, following):
            index += 1
            flags.append(Flag(name=text, location=location, value=out.of_word(following)))
            if _many(text):
                while index < len(words) and not _is_flag(words[index].text) and not words[index].spread:
                    index += 1
        else:
            flags.append(Flag(name=text, location=location))
    return Arguments(tuple(flags), tuple(positionals), not spreads, tuple(spreads))


def _is_flag(text: str) -> bool:
    return len(text) > 1 and text[0] == "-" and (text[1].isalpha() or (text[1] == "-" and len(text) > 2))


def is_boolean(name: str) -> bool:
    """Whether a flag takes no value (``--enable-x``, ``--no-x``, and the known ones)."""
    bare = name.lstrip("-").replace("_", "-")
    if bare in _VALUED_EXCEPTIONS:
        return False
    return bare in _BOOLEANS or bare.startswith(_BOOLEAN_PREFIXES)


def _takes(name: str, following: Word) -> bool:
    text = following.text
    if following.spread:
        # `--port $PORT`: an unquoted variable is a value where one is due, `"$@"` never is.
        return not is_boolean(name) and not following.quoted and "@" not in _raw_hint(following) and name[1] == "-"
    if re.match(r"^-O\d?$", name):
        return False
    if is_boolean(name):
        return text.lower() in ("true", "false", "0", "1", "yes", "no")
    return not _is_flag(text)


def _raw_hint(word: Word) -> str:
    return "@" if word.end - word.start == 0 else ""


def _many(name: str) -> bool:
    return name.replace("_", "-") in ("--served-model-name", "--lora-modules", "--middleware", "--api-key")


def build_launch(
    out: Collector,
    product: Product,
    program: Word,
    arguments: Sequence[Word],
    around: Surroundings,
) -> Launch:
    """Make the record, with its JSON, dotted and file configurations attached."""
    parsed = parse_arguments(out, arguments)
    for word in parsed.spreads:
        out.add_unresolved(word.start, "part of the command line is only known when it runs")
    model: Value | None = out.of_word(parsed.positionals[0]) if parsed.positionals else None
    for flag in parsed.flags:
        if flag.name in ("--model", "--model-path", "--model_path", "--model-tag") and flag.value is not None:
            model = flag.value
    vllm_version, lmcache_version = image_versions(around.image)
    return Launch(
        product=product,
        location=out.location(program.start),
        source=around.source,
        flags=parsed.flags,
        env=around.env,
        configs=tuple(launch_configs(out, parsed.flags, arguments, around)),
        limits=around.limits,
        model=model,
        image=around.image,
        vllm_version=vllm_version or around.vllm_version,
        lmcache_version=lmcache_version or around.lmcache_version,
        replicas=around.replicas,
        words=around.words,
        complete=parsed.complete and around.complete,
        env_complete=around.env_complete,
    )


def launch_from_image(
    out: Collector, image: Word, arguments: Sequence[Word], around: Surroundings, entrypoint: Sequence[Word] = ()
) -> Launch | None:
    """A container start: flags after an image name belong to the image's own entry point."""
    around = replace(around, image=out.of_word(image))
    words = [*entrypoint, *arguments]
    found = find_program(words)
    if found:
        start, first, product = found
        return build_launch(out, product, words[start], words[first:], around)
    if entrypoint:
        return None
    product = image_product(image.text)
    if product == "vllm" and (not words or words[0].text.startswith("-") or looks_like_vllm_arguments(words)):
        return build_launch(out, "vllm", image, words, around)
    if product != "vllm" and any(DISTINCTIVE.match(w.text) for w in words):
        return build_launch(out, "vllm", image, words, around)
    if HOLE in image.text and looks_like_vllm_arguments(words):
        return build_launch(out, "vllm", image, words, around)
    return None
