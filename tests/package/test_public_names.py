"""What ``from pytest_kvoffload import ...`` gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pytest_kvoffload


@pytest.mark.parametrize("name", pytest_kvoffload.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pytest_kvoffload, name) is not None
    assert name in dir(pytest_kvoffload)


def test_every_assertion_is_public() -> None:
    from pytest_kvoffload import assertions

    assert {n for n in assertions.__all__ if n.startswith("assert_")} <= set(pytest_kvoffload.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'assert_everything'"):
        _ = pytest_kvoffload.assert_everything


def test_importing_the_package_imports_no_room() -> None:
    code = "import sys, pytest_kvoffload; print([n for n in sys.modules if n.startswith('pytest_kvoffload.')])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "['pytest_kvoffload._version']"
