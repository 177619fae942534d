"""Files made to cost much, and the byte filter in front of everything."""

from __future__ import annotations

import pytest
from source_samples import SAMPLES

from pytest_kvoffload.lint.sources import INTERNAL, MAX_CHARACTERS, interesting, read

BOMB = "vllm: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)
)
DEEP = 5_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bomb.yaml", BOMB),
        ("bomb2.yaml", BOMB + "apiVersion: v1\nkind: Pod\nargs: *t\nimage: vllm\n"),
        ("deep.yaml", "vllm: " + "[" * DEEP + "]" * DEEP),
        ("deep2.yaml", "apiVersion: vllm\n" + "".join(" " * i + "a:\n" for i in range(1500))),
        ("deep.json", '{"vllm":' + "[" * DEEP + "]" * DEEP + "}"),
        ("deep.py", "import vllm\nx = " + "(" * DEEP + ")" * DEEP),
        ("deep2.py", "import vllm\nx = " + "+".join(["1"] * DEEP)),
        ("deep.sh", "vllm " + "$(" * DEEP + ")" * DEEP),
        ("deep2.sh", "vllm serve " + "((" * DEEP),
        ("deep3.sh", "if true; then " * 800 + "vllm serve m" + "; fi" * 800),
        ("deep.toml", "vllm = " + "[" * DEEP + "]" * DEEP),
        ("deep.md", "```bash\nvllm serve m\n" + "> " * DEEP + "\n```"),
        ("fork.sh", "".join(f"if a{i}; then A{i}=1; fi\n" for i in range(60)) + "vllm serve m $A1\n"),
        ("loops.sh", "for i in 1 2 3 4; do " * 12 + "vllm serve m" + "; done" * 12),
        ("recurse.sh", "f() { vllm serve m; f; g; }\ng() { f; f; }\nf\n"),
        ("double.sh", "A=vllm\n" + "A=$A$A\n" * 60 + "$A serve m\n"),
        ("array.sh", "A=(vllm)\n" + 'A+=("${A[@]}")\n' * 40 + '"${A[@]}" serve m\n'),
        ("double.py", "import vllm\na = 'vllm serve m'\n" + "a = a + a\n" * 60),
        ("pow.py", "import vllm\nx = 9**9**9\ny = 2**(10**9)\nz = 1 << (10**9)\n"),
        ("pow.sh", "vllm serve m --x $((9**9**9)) --y $((1<<999999999))\n"),
        ("line.sh", "vllm serve m " + "--x y " * 30_000),
        ("line.yaml", "a: vllm " + "x" * 500_000),
        ("nul.sh", "vllm\x00serve m\n"),
        ("crlf.sh", "vllm serve m \\\r\n  --cpu-offload-gb 4\r\n"),
    ],
)
def test_costly_files_are_bounded(name: str, text: str) -> None:
    found = read(name, text, markdown=True)
    assert not [u for u in found.unresolved if u.reason.startswith(INTERNAL)], found.unresolved


def test_carriage_returns_are_no_part_of_values() -> None:
    found = read("crlf.sh", "vllm serve m \\\r\n  --cpu-offload-gb 4\r\n")
    flag = found.launches[0].flag("--cpu-offload-gb")
    assert flag is not None
    assert flag.value is not None
    assert (flag.location.line, flag.value.text) == (2, "4")


def test_huge_text_is_named_and_not_read() -> None:
    found = read("x.sh", "vllm serve m\n" * (MAX_CHARACTERS // 13 + 1))
    assert found.launches == ()
    assert [u.reason for u in found.unresolved] == ["the file is too large to be a configuration"]


def test_undecodable_bytes_are_no_obstacle() -> None:
    found = read("x.sh", b"# \xff\xfe\nvllm serve m\n".decode("utf-8", "replace"))
    assert len(found.launches) == 1


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_byte_filter_lets_every_sample_through(name: str) -> None:
    if name not in ("patch.yaml",):
        assert interesting(SAMPLES[name].encode()) or name == "lmcache.yaml"


def test_the_byte_filter_stops_the_rest() -> None:
    assert not interesting(b"print('hello')\n")
    assert interesting(b"x VLLM y")
