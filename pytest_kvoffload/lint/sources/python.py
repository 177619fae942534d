"""placeholder"""

from pytest_kvoffload.lint.sources.collect import Collector
from pytest_kvoffload.lint.sources.text import Mapped


def read_python(out: Collector, text: Mapped) -> None: ...
