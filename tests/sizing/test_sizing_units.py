"""Sizes with units: GiB and GB are never one for the other, and a bare number is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.sizing import parse_fraction, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("28GiB", 28 * 2**30),
        ("80GB", 80 * 10**9),
        ("80 gb", 80 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("1TiB", 2**40),
        ("4Ki", 4096),
        ("0", 0),
        ("1_000B", 1000),
        ("2e3 MB", 2 * 10**9),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("28", "has no unit; write 28GiB (28 x 2**30 bytes) or 28GB"),
        ("28G", "G alone is ambiguous: GiB or GB?"),
        ("28XB", "unit 'XB' of '28XB' is unknown"),
        ("-1GiB", "is negative"),
        ("much", "is not a size; expected a number and a unit"),
        ("", "is not a size"),
        ("1e99999GiB", "is not a size"),
    ],
)
def test_bad_sizes_say_what_to_write(text: str, words: str) -> None:
    with pytest.raises(UsageError, match="--device-kv: ") as caught:
        parse_size(text, what="--device-kv")
    assert words in str(caught.value)


@given(count=st.integers(min_value=0, max_value=2**50))
def test_whole_bytes_survive(count: int) -> None:
    assert parse_size(f"{count}B") == count
    assert parse_size(f"{count}GiB") == count * 2**30
    assert parse_size(f"{count}GB") == count * 10**9


@pytest.mark.parametrize(("text", "expected"), [("15%", 0.15), ("0.15", 0.15), ("0%", 0.0), ("100%", 1.0)])
def test_fractions(text: str, expected: float) -> None:
    assert parse_fraction(text, what="--headroom") == pytest.approx(expected)


@pytest.mark.parametrize("text", ["-1%", "lots", "nan", "120%"])
def test_bad_fractions(text: str) -> None:
    with pytest.raises(UsageError, match="--utilisation: "):
        parse_fraction(text, what="--utilisation", high=1.0)
