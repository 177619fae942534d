"""One measurement: phases, settling, resets, scrapes and deltas."""

from pytest_kvoffload.probe.interface import (
    MeasurementDiedError,
    MeasurementInterrupted,
    Progress,
    ProgressCallback,
    RestartCallback,
    Server,
)
from pytest_kvoffload.probe.measure import measure
from pytest_kvoffload.probe.resources import snapshot_resources

__all__ = [
    "MeasurementDiedError",
    "MeasurementInterrupted",
    "Progress",
    "ProgressCallback",
    "RestartCallback",
    "Server",
    "measure",
    "snapshot_resources",
]
