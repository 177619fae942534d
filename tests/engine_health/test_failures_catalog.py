"""The catalog of failures is sound: every class has a remedy, every match compiles, says its version and source."""

from __future__ import annotations

import re
import string

import pytest
from packaging.specifiers import SpecifierSet

from pytest_kvoffload.catalog.failures import Failure, load_failures

FAILURES = load_failures().failure


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.cls)
def test_a_class_is_complete(failure: Failure) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", failure.cls)
    assert failure.remedy.strip()
    assert failure.match
    for match in failure.match:
        groups = set(re.compile(match.pattern).groupindex) | set(re.compile(match.before or "").groupindex)
        used = {name for _, name, _, _ in string.Formatter().parse(match.cause) if name}
        assert used <= groups | {"at"}, match.cause
        assert SpecifierSet(match.versions)
        assert match.source
        for pattern in (match.within, match.recovery):
            re.compile(pattern or "")


def test_class_names_are_unique() -> None:
    names = [failure.cls for failure in FAILURES]
    assert sorted(set(names)) == sorted(names)


def test_an_unknown_class_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"no failure class 'shm'; there are: .*shm-too-small"):
        load_failures().by_class("shm")
