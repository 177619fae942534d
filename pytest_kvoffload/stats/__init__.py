"""Pure numbers: quantiles with exact intervals, and tests of one latency tail against another.

No I/O, no configuration. ``numpy`` and ``scipy`` (the extra ``gate``) are imported inside the functions that need
them; :func:`quantile` and :func:`smallest_n` need neither.
"""

from pytest_kvoffload.stats.quantiles import QuantileInterval, quantile, quantile_interval, smallest_n
from pytest_kvoffload.stats.tail import TailDecision, TailResult, tail_regression

__all__ = [
    "QuantileInterval",
    "TailDecision",
    "TailResult",
    "quantile",
    "quantile_interval",
    "smallest_n",
    "tail_regression",
]
