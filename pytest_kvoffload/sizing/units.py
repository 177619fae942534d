"""Sizes with units: GiB is 2**30 and GB is 10**9, never one for the other.

A bare number is refused, because every backend of this field reads one differently: vLLM's ``--kv-offloading-size``
is GiB, ``cpu_bytes_to_use`` is bytes, LMCache's ``max_local_cpu_size`` is GiB per rank.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from pytest_kvoffload.errors import UsageError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_UNITS: dict[str, int] = {
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "ki": KIB,
    "mi": MIB,
    "gi": GIB,
    "ti": TIB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_SIZE = re.compile(r"\s*([+-]?[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-z]*)\s*")


def parse_size(text: str, *, what: str = "size") -> int:
    """Parse ``28GiB``, ``80 GB`` or ``512MiB`` to bytes.

    Args:
        text: a number and a unit: B, KiB, MiB, GiB, TiB (powers of 1024; the Kubernetes spellings Ki to Ti too) or
            KB, MB, GB, TB (powers of 1000).
        what: the option's name for the message.

    Returns:
        Bytes, at least 0, rounded to the nearest whole byte.

    Raises:
        UsageError: no unit, an unknown unit, not a number, or negative.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{what}: {text!r} is not a size; expected a number and a unit, such as 28GiB or 80GB")
    number, unit = match.groups()
    try:
        value = Decimal(number.replace("_", ""))
    except InvalidOperation as error:  # pragma: no cover - the pattern admits nothing that Decimal refuses
        raise UsageError(f"{what}: {text!r} is not a number") from error
    if value < 0:
        raise UsageError(f"{what}: {text!r} is negative; expected 0 or more")
    if not unit:
        if value == 0:
            return 0
        raise UsageError(
            f"{what}: {text!r} has no unit; write {number}GiB ({number} x 2**30 bytes) or {number}GB "
            f"({number} x 10**9 bytes)"
        )
    factor = _UNITS.get(unit.lower())
    if factor is None:
        hint = " (G alone is ambiguous: GiB or GB?)" if unit.lower() in {"k", "m", "g", "t"} else ""
        raise UsageError(
            f"{what}: unit {unit!r} of {text!r} is unknown{hint}; expected B, KiB, MiB, GiB, TiB, MB, GB, TB"
        )
    return int((value * factor).to_integral_value())


def parse_fraction(text: str, *, what: str, low: float = 0.0, high: float | None = None) -> float:
    """Parse ``15%`` or ``0.15`` to 0.15.

    Raises:
        UsageError: not a number, or outside ``[low, high]``.
    """
    body = text.strip()
    percent = body.endswith("%")
    try:
        value = float(body.removesuffix("%"))
    except ValueError:
        raise UsageError(f"{what}: {text!r} is not a fraction; expected 15% or 0.15") from None
    value = value / 100 if percent else value
    if value != value or value < low or (high is not None and value > high):
        limit = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
        raise UsageError(f"{what}: {text!r} is out of range; expected {limit} (15% or 0.15)")
    return value


def show_bytes(count: int) -> str:
    """Render a byte count in the largest binary unit that keeps it at 1 or more: ``197.8 GiB``."""
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(count) >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count:,} B"
