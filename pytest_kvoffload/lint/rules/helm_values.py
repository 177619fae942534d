"""production-stack's ``servingEngineSpec.modelSpec[]``, for the rules about it (no rule of its own)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_kvoffload.lint.model import Launch, Member, Node
from pytest_kvoffload.lint.numbers import plain_number

_UNITS = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One item of ``modelSpec``."""

    node: Node

    @property
    def enabled(self) -> bool:
        """Whether the chart adds the LMCache connector."""
        config = self.node.get("lmcacheConfig")
        enabled = config.get("enabled") if config is not None and config.kind == "object" else None
        return enabled is None or enabled.value not in (False, "false")

    def buffer(self, key: str) -> Member | None:
        """Return a size of ``lmcacheConfig`` when LMCache is on."""
        config = self.node.get("lmcacheConfig")
        if config is None or config.kind != "object" or not self.enabled:
            return None
        return config.member(key)

    def number(self, member: Member | None) -> float | None:
        """Return a size as a number, ``None`` for anything else."""
        if member is None or member.node.kind not in {"string", "number"}:
            return None
        return plain_number(str(member.node.value).strip())

    @property
    def ranks(self) -> int | None:
        """``tensorParallelSize`` times ``pipelineParallelSize``, 1 when absent."""
        engine = self.node.get("vllmConfig")
        total = 1
        for key in ("tensorParallelSize", "pipelineParallelSize"):
            value = engine.get(key) if engine is not None and engine.kind == "object" else None
            if value is None or value.kind == "null":
                continue
            number = plain_number(str(value.value)) if value.kind in {"string", "number"} else None
            if number is None or number < 1:
                return None
            total *= int(number)
        return total

    def memory(self, key: str) -> tuple[float, str] | None:
        """Return bytes and text of ``requestMemory`` or ``limitMemory``."""
        value = self.node.get(key)
        if value is None or value.kind not in {"string", "number"}:
            return None
        text = str(value.value).strip()
        match = re.match(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?\Z", text)
        return (float(match.group(1)) * _UNITS[match.group(2) or ""], text) if match else None

    def env_names(self) -> set[str]:
        """Return the names in ``env``."""
        env = self.node.get("env")
        names = [item.get("name") for item in env.items] if env is not None else []
        return {str(n.value) for n in names if n is not None and n.kind == "string"}


def model_specs(launch: Launch) -> Iterator[ModelSpec]:
    """Yield the specs that belong to a launch (or are loose)."""
    for config in launch.configs:
        if config.kind == "helm-model-spec" and config.node.kind == "object":
            yield ModelSpec(config.node)
