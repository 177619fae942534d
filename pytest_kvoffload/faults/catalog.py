"""Which faults there are: what each does, what it needs of a connector, and which outcomes are acceptable. Data only.

``site`` names what a fault acts on; a connector has it or has not (:mod:`.stage`):

=================  ===============================================================================================
``engine``         the server's own processes
``launch``         its configuration: the fault is there from the boot on
``host_memory``    the host tier of the OffloadingConnector
``disk``           the directory of a disk tier
``object_store``   the S3 server of an object tier
``cache_server``   LMCache's server process
``redis``          the redis server of a remote tier
=================  ===============================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_kvoffload.errors import UsageError, did_you_mean
from pytest_kvoffload.records import FaultOutcome

Site: TypeAlias = Literal["engine", "launch", "host_memory", "disk", "object_store", "cache_server", "redis"]

_GOES_ON: tuple[FaultOutcome, ...] = ("served", "degraded")
_CAUGHT: tuple[FaultOutcome, ...] = ("wrong_output", "degraded", "failed_loudly")
_DIES: tuple[FaultOutcome, ...] = ("failed_loudly",)


class FaultImpossibleError(UsageError):
    """A fault cannot be made on this machine, or on this server; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    ``expected`` are the outcomes that make the run pass. A tier is a cache: when it breaks, requests are to be
    answered all the same, so for most faults nothing else is acceptable.
    """

    name: str
    site: Site
    summary: str
    expected: tuple[FaultOutcome, ...] = _GOES_ON
    from_boot: bool = False
    """Whether it needs a boot of its own, in which it is there from the start."""
    lasting: bool = False
    """Whether it leaves the tier damaged when it is over: hits then come back with new stores only."""
    slow: bool = False
    """Whether it only slows the tier: hits are what is expected then, and a slower first token."""


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="tier_exhausted",
        site="launch",
        summary="the host tier holds a quarter of the working set",
        from_boot=True,
    ),
    Fault(
        name="link_slow",
        site="launch",
        summary="the link to the host tier is modelled as 20 MB/s with 50 ms latency",
        from_boot=True,
        slow=True,
    ),
    Fault(
        name="host_memory_corrupted",
        site="host_memory",
        summary="every byte of the blocks in the host tier is inverted",
        expected=_CAUGHT,
        lasting=True,
    ),
    Fault(name="disk_full", site="disk", summary="no byte is left on the tier's file system"),
    Fault(name="disk_read_only", site="disk", summary="the tier's file system is remounted read-only"),
    Fault(name="disk_files_deleted", site="disk", summary="the tier's files are deleted under it", lasting=True),
    Fault(
        name="disk_files_truncated",
        site="disk",
        summary="the tier's files are cut to half",
        lasting=True,
    ),
    Fault(
        name="disk_files_corrupted",
        site="disk",
        summary="every byte of the tier's files is inverted",
        expected=_CAUGHT,
        lasting=True,
    ),
    Fault(name="object_store_down", site="object_store", summary="connections to the object store are refused"),
    Fault(
        name="object_store_slow",
        site="object_store",
        summary="each request to the object store takes 300 ms more",
        slow=True,
    ),
    Fault(name="object_store_errors", site="object_store", summary="the object store answers 503 SlowDown"),
    Fault(
        name="object_store_forbidden",
        site="object_store",
        summary="the credentials are no longer valid: 403 InvalidAccessKeyId",
    ),
    Fault(
        name="object_truncated",
        site="object_store",
        summary="downloads end half-way and the connection is cut",
    ),
    Fault(
        name="object_stragglers",
        site="object_store",
        summary="downloads end half-way and the connection is cut, for every second object 0.8 s after the others",
    ),
    Fault(
        name="object_short",
        site="object_store",
        summary="the objects are half as long as what was stored: downloads are complete, and too short",
    ),
    Fault(
        name="object_corrupted",
        site="object_store",
        summary="downloads arrive whole with every byte inverted",
        expected=_CAUGHT,
    ),
    Fault(
        name="credentials_wrong",
        site="object_store",
        summary="the object store refuses the credentials from the boot on: 403 InvalidAccessKeyId",
        expected=(*_GOES_ON, *_DIES),
        from_boot=True,
    ),
    Fault(
        name="cache_server_killed",
        site="cache_server",
        summary="LMCache's server is killed, and started again, empty, when the fault is over",
        lasting=True,
    ),
    Fault(
        name="cache_server_restarted",
        site="cache_server",
        summary="LMCache's server is killed and at once started again, empty",
        lasting=True,
    ),
    Fault(
        name="cache_server_wrong_port",
        site="cache_server",
        summary="vLLM is told a port on which no LMCache server listens",
        expected=_DIES,
        from_boot=True,
    ),
    Fault(
        name="cache_server_wrong_mode",
        site="cache_server",
        summary="vLLM asks for a transfer mode that the LMCache server does not serve",
        expected=_DIES,
        from_boot=True,
    ),
    Fault(name="redis_gone", site="redis", summary="connections to redis are refused"),
    Fault(name="redis_slow", site="redis", summary="each request to redis takes 300 ms more", slow=True),
    Fault(
        name="worker_killed",
        site="engine",
        summary="the engine's core process is killed with SIGKILL",
        expected=_DIES,
    ),
)
"""In the order in which they run on a connector: those of one boot together, what kills the server last."""

LEFT_OUT = (
    "a slow disk: without a block device of our own, a FUSE file system or a library loaded into the server there is "
    "no honest way to slow one directory down"
)
"""What is asked for often and not here, and why."""


def find_faults(names: tuple[str, ...]) -> tuple[Fault, ...]:
    """Return the named faults in the order of :data:`FAULTS`; all of them without a name.

    Raises:
        UsageError: an unknown name; the text says which was probably meant.
    """
    known = {fault.name: fault for fault in FAULTS}
    for name in names:
        if name not in known:
            raise UsageError(f"unknown fault {name!r}{did_you_mean(name, known)}; the faults are: {', '.join(known)}")
    return tuple(fault for fault in FAULTS if not names or fault.name in names)
