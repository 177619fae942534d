"""Pure numbers: quantiles with exact intervals, and tests of one latency tail against another.

No I/O, no configuration. ``numpy`` and ``scipy`` (the extra ``gate``) are imported inside the functions that need
them; :func:`quantile` and :func:`smallest_n` need neither.
"""

from pytest_kvoffload.stats.quantiles import QuantileInterval, quantile, quantile_interval, smallest_n

__all__ = ["QuantileInterval", "quantile", "quantile_interval", "smallest_n"]
