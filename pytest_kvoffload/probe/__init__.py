"""One measurement: phases, settling, resets, scrapes and deltas."""

from pytest_kvoffload.probe.clear import is_new
from pytest_kvoffload.probe.interface import (
    Disturbance,
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
    "Disturbance",
    "MeasurementDiedError",
    "MeasurementInterrupted",
    "Progress",
    "ProgressCallback",
    "RestartCallback",
    "Server",
    "is_new",
    "measure",
    "snapshot_resources",
]
