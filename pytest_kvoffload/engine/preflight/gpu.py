"""The GPUs as nvidia-smi sees them: there, with enough free memory, and who else holds some."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from pytest_kvoffload.engine.preflight.needs import argument
from pytest_kvoffload.engine.preflight.report import Check, listed, size

_TIMEOUT_SECONDS = 20.0
_MIB = 2**20
# vLLM's default of --gpu-memory-utilization, 0.26.0 (config/cache.py:68) to 0.33.0 (:215).
_DEFAULT_UTILIZATION = 0.92


def check_gpu(
    *, ranks: int, words: Sequence[str], env: Mapping[str, str], nvidia_smi: str | None = None
) -> tuple[Check, ...]:
    """Check presence and free memory of the GPUs that the server will take.

    vLLM refuses to start where the free memory is less than utilisation x total, so that is what is needed.

    Args:
        ranks: how many GPUs it takes.
        words: the server's arguments (``--gpu-memory-utilization``).
        env: the server's environment (``CUDA_VISIBLE_DEVICES``).
        nvidia_smi: the program; ``None`` looks for it on the PATH.
    """
    program = nvidia_smi or shutil.which("nvidia-smi")
    if program is None:
        return (
            Check(
                name="gpu",
                status="skip",
                saw="nvidia-smi is not here, so no NVIDIA GPU could be looked at",
                remedy='without a GPU use engine.kind = "cpu"',
            ),
        )
    try:
        rows = _query(program, "--query-gpu=index,uuid,name,memory.total,memory.free")
        holders = _query(program, "--query-compute-apps=gpu_uuid,pid,process_name,used_memory")
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return (
            Check(
                name="gpu",
                status="fail",
                saw=f"nvidia-smi failed: {_text(error)}",
                needed=f"{ranks} working GPUs",
                remedy="mend the driver, or give the container the GPUs (docker --gpus all)",
            ),
        )
    visible = _visible(rows, env.get("CUDA_VISIBLE_DEVICES"))
    if len(visible) < ranks:
        return (
            Check(
                name="gpu",
                status="fail",
                saw=f"{len(visible)} of {len(rows)} GPUs are visible",
                needed=str(ranks),
                remedy="lower the parallel sizes, or widen CUDA_VISIBLE_DEVICES",
            ),
        )
    try:
        utilization = float(
            argument(words, "--gpu-memory-utilization", "--device-memory-utilization") or _DEFAULT_UTILIZATION
        )
    except ValueError:
        utilization = _DEFAULT_UTILIZATION
    return tuple(_one(row, holders, utilization) for row in visible[:ranks])


def _one(row: Sequence[str], holders: Sequence[Sequence[str]], utilization: float) -> Check:
    index, uuid, model, total_mib, free_mib = row
    name = f"gpu {index}"
    if not (total_mib.isdigit() and free_mib.isdigit()):
        return Check(name=name, status="skip", saw=f"{model}: memory is not reported ({total_mib})")
    total, free = int(total_mib) * _MIB, int(free_mib) * _MIB
    others = [f"{pid} {program} ({used} MiB)" for gpu, pid, program, used in holders if gpu == uuid]
    saw = f"{model}, {size(free)} free of {size(total)}" + (f"; held by {listed(others)}" if others else "")
    wanted = int(total * utilization)
    needed = f"{size(wanted)} free (utilisation {utilization:g} of the whole)"
    if free < wanted:
        return Check(
            name=name,
            status="fail",
            saw=saw,
            needed=needed,
            remedy="end the other processes, or lower --gpu-memory-utilization",
        )
    return Check(name=name, status="warn" if others else "ok", saw=saw, needed=needed)


def _visible(rows: Sequence[Sequence[str]], chosen: str | None) -> list[Sequence[str]]:
    if chosen is None:
        return list(rows)
    found = []
    for word in (word.strip() for word in chosen.split(",")):
        match = next((row for row in rows if word and (row[0] == word or row[1].startswith(word))), None)
        if match is None:
            break  # CUDA ignores everything after the first device that does not exist
        found.append(match)
    return found


def _query(program: str, query: str) -> list[list[str]]:
    done = subprocess.run(
        [program, query, "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=True,
    )
    fields = query.count(",") + 1
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(done.stdout)) if row]
    if any(len(row) != fields for row in rows):
        raise ValueError(f"unexpected answer: {done.stdout.strip()[:200]}")
    return rows


def _text(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return (str(error.stdout).strip() or str(error.stderr).strip() or str(error)).splitlines()[0]
    return str(error)
