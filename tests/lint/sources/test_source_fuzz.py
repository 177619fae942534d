"""No input makes a reader raise, hang, or name a place outside the file."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_samples import SAMPLES

from pytest_kvoffload.lint.model import Config, Document, Location, Node
from pytest_kvoffload.lint.sources import INTERNAL, read

EXAMPLES = int(os.environ.get("KVOFFLOAD_FUZZ_EXAMPLES", "200"))
"""Examples for each format; 10,000 is the release budget."""

TOKENS = [
    "'", '"', "\\", "\n", " ", "\t", "$(", "${", "}", "{", "[", "]", "((", "))", "`", "<<EOF\n", "EOF\n", "|", "&", ";",
    "#", "{{", "}}", "{%", "%}", "*a", "&a ", "<<: *a", ": ", "- ", "--kv-transfer-config", "vllm serve", "\x00",
    "\ufeff", "\u2028", "\U0001f600", "\ue000", "é", "${A:-", "$'", "f'{", "'''", '"""', "if ", "fi", "case x in",
    "esac", "()",
    "lambda: ", "\r\n", "\x85", "9" * 60, "1e999", "0x", "~", "!!binary ", "? ", "[[", "]]", "\ud800",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, text: str) -> str:
    """Delete, repeat, move, insert, and truncate pieces of a file."""
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.integers(0, 60)))
        kind = draw(st.sampled_from(("delete", "insert", "repeat", "text", "truncate", "swap")))
        if kind == "delete":
            text = text[:start] + text[stop:]
        elif kind == "insert":
            text = text[:start] + draw(st.sampled_from(TOKENS)) + text[start:]
        elif kind == "repeat":
            text = text[:stop] + text[start:stop] * draw(st.integers(1, 4)) + text[stop:]
        elif kind == "text":
            text = text[:start] + draw(st.text(max_size=12)) + text[stop:]
        elif kind == "truncate":
            text = text[:stop]
        else:
            other = draw(st.integers(0, len(text)))
            text = text[:start] + text[other : other + 40] + text[stop:]
    return text


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_mutated_files_are_read(name: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(mutated(SAMPLES[name]))
    def check(text: str) -> None:
        found = read(name, text, markdown=True)
        assert not [u for u in found.unresolved if u.reason.startswith(INTERNAL)], found.unresolved
        lines = text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
        for place in places(found):
            assert 1 <= place.line <= lines
            assert place.column >= 1
            assert place.path == name

    check()


@pytest.mark.parametrize("name", ["x.sh", "x.yaml", "x.py", "Dockerfile", "x.service", "x.toml", "x.json", "x.md", "x"])
def test_arbitrary_text_is_read(name: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(
        st.lists(st.sampled_from([*TOKENS, "vllm", " serve ", "a", "=", "env:", "args:", "A=1 "]) | st.text(max_size=5))
    )
    def check(parts: list[str]) -> None:
        found = read(name, "vllm " + "".join(parts), markdown=True)
        assert not [u for u in found.unresolved if u.reason.startswith(INTERNAL)], found.unresolved

    check()


def places(found: Document) -> Iterator[Location]:
    """Yield every place that a document names."""
    configs: list[Config] = list(found.loose_configs)
    for launch in found.launches:
        yield launch.location
        for flag in launch.flags:
            yield flag.location
            if flag.value is not None:
                yield flag.value.location
        for variable in launch.env:
            yield variable.location
            yield variable.value.location
        configs.extend(launch.configs)
    for config in configs:
        yield config.location
        yield from node_places(config.node)
    for place, _ in found.problems:
        yield place
    for note in found.unresolved:
        yield note.location


def node_places(node: Node) -> Iterator[Location]:
    """Yield the places of a tree."""
    yield node.location
    for member in node.members:
        yield member.location
        yield from node_places(member.node)
    for item in node.items:
        yield from node_places(item)
