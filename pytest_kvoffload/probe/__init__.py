"""One measurement: phases, settling, resets, scrapes and deltas."""

from pytest_kvoffload.probe.measure import (
    MeasurementDiedError,
    MeasurementInterrupted,
    Progress,
    ProgressCallback,
    RestartCallback,
    Server,
    measure,
)

__all__ = [
    "MeasurementDiedError",
    "MeasurementInterrupted",
    "Progress",
    "ProgressCallback",
    "RestartCallback",
    "Server",
    "measure",
]
