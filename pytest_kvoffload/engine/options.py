"""Reading one connector's options: every mistake becomes a ConfigError that says key, got, expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_kvoffload.engine.masking import mask_value
from pytest_kvoffload.errors import ConfigError, did_you_mean

GIB = 2**30


class OptionReader:
    """The options of one connector, read key by key and refused where they make no sense.

    Args:
        section: where they stand, such as ``connectors.native``.
        options: the raw values, as TOML or Python gave them.
    """

    def __init__(self, section: str, options: Mapping[str, Any]) -> None:
        self.section = section
        self.options = options

    def fail(self, key: str | None, expected: str, *, got: Any = None, hint: str = "") -> ConfigError:
        """Build the error (the caller raises it); ``got`` is rendered with ``repr``, its secrets hidden."""
        shown = None if got is None else repr(mask_value(got, name=key or ""))
        return ConfigError(section=self.section, key=key, got=shown, expected=expected, hint=hint)

    def only(self, known: Iterable[str], *, hint: str = "") -> None:
        """Refuse any key that is not in ``known``."""
        names = sorted(known)
        for key in self.options:
            if key not in names:
                raise ConfigError(
                    section=self.section,
                    key=key,
                    expected=f"one of {', '.join(names)}" if names else "no options for this kind",
                    hint=did_you_mean(key, names) + hint,
                )

    def has(self, key: str) -> bool:
        """Whether the key was given (``None`` counts as absent)."""
        return self.options.get(key) is not None

    def number(self, key: str, *, above: float | None = None, at_least: float | None = None) -> float | None:
        """A float, ``None`` when absent. Booleans and numeric strings are refused."""
        value = self.options.get(key)
        if value is None:
            return None
        bound = (
            f" above {above:g}" if above is not None else f" of at least {at_least:g}" if at_least is not None else ""
        )
        ok = isinstance(value, int | float) and not isinstance(value, bool) and value == value
        if ok and above is not None:
            ok = value > above
        if ok and at_least is not None:
            ok = value >= at_least
        if not ok or value in (float("inf"), float("-inf")):
            raise self.fail(key, f"a number{bound}", got=value)
        return float(value)

    def integer(self, key: str, *, at_least: int) -> int | None:
        """An int, ``None`` when absent. Floats with a whole value (``1e9``) are taken."""
        value = self.options.get(key)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            raise self.fail(key, f"a whole number of at least {at_least}", got=value)
        return value

    def boolean(self, key: str) -> bool | None:
        """A bool, ``None`` when absent. A string is refused: vLLM reads ``"false"`` as true."""
        value = self.options.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self.fail(key, "true or false (not a string)", got=value)

    def text(self, key: str) -> str | None:
        """A non-empty string, ``None`` when absent."""
        value = self.options.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise self.fail(key, "a non-empty string", got=value)
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        """A table, empty when absent."""
        value = self.options.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.fail(key, "a table", got=value)
        return dict(value)

    def host_bytes(self) -> int:
        """The host tier's size in bytes, from ``size_gib`` (GiB, 2**30) or ``cpu_bytes_to_use`` (bytes)."""
        if self.has("size_gib") and self.has("cpu_bytes_to_use"):
            raise self.fail("size_gib", "size_gib (GiB) or cpu_bytes_to_use (bytes), not both")
        gib = self.number("size_gib", above=0)
        if gib is not None:
            return max(1, round(gib * GIB))
        count = self.integer("cpu_bytes_to_use", at_least=1)
        if count is None:
            raise self.fail("size_gib", "the size of the host tier: size_gib (GiB) or cpu_bytes_to_use (bytes)")
        return count
