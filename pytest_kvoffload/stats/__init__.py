"""Pure numbers: quantiles with exact intervals, and tests of one latency tail against another.

No I/O, no configuration. ``numpy`` and ``scipy`` (the extra ``gate``) are imported inside the functions that need
them; :func:`quantile`, :func:`smallest_n` and :func:`holm` need neither.
"""

from pytest_kvoffload.stats.noise import NoiseFloor, noise_floor
from pytest_kvoffload.stats.quantiles import QuantileInterval, quantile, quantile_interval, smallest_n
from pytest_kvoffload.stats.result import TailDecision, TailResult
from pytest_kvoffload.stats.sequential import Look, SequentialGate, holm, holm_adjusted
from pytest_kvoffload.stats.tail import tail_regression

__all__ = [
    "Look",
    "NoiseFloor",
    "QuantileInterval",
    "SequentialGate",
    "TailDecision",
    "TailResult",
    "holm",
    "holm_adjusted",
    "noise_floor",
    "quantile",
    "quantile_interval",
    "smallest_n",
    "tail_regression",
]
