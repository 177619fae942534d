"""Faults as scenarios: a tier is broken under a running server, and what its requests then get is the result."""

from pytest_kvoffload.faults.catalog import FAULTS, LEFT_OUT, Fault, find_faults
from pytest_kvoffload.faults.course import Chaos, run_faults

__all__ = ["FAULTS", "LEFT_OUT", "Chaos", "Fault", "find_faults", "run_faults"]
