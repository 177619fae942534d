"""What a launch amounts to: the connectors that will run, their sizes, the ranks, LMCache's settings, the version.

Rules read a :class:`Context` and so never walk a command line themselves. Nothing here guesses: a value that is not
known statically is ``None``, and a rule that needs it stays silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.lint import intent
from pytest_kvoffload.lint.model import Config, Document, Flag, Launch, Node
from pytest_kvoffload.lint.numbers import GIB, human_number, known_text, node_number
from pytest_kvoffload.lint.parts import (
    LMCACHE_ENV,
    ConnectorUse,
    Setting,
    TierSize,
    connector_uses,
    lmcache_settings,
    version_of,
)


class Context:
    """Everything a rule may ask about one launch of one document."""

    def __init__(
        self,
        document: Document,
        launch: Launch,
        *,
        vllm_version: str | None = None,
        lmcache_version: str | None = None,
        pedantic: bool = False,
    ) -> None:
        self.document = document
        self.launch = launch
        self.pedantic = pedantic
        self.vllm = version_of(launch.vllm_version, vllm_version)
        self.lmcache = version_of(launch.lmcache_version, lmcache_version)

    @property
    def complete(self) -> bool:
        """Whether the whole command line is known. A ``--config`` file is judged as if nothing were added to it."""
        return self.launch.complete or self.launch.source == "vllm-config-yaml"

    @property
    def from_chart(self) -> bool:
        """Whether the launch is what production-stack's chart makes of a model spec."""
        return any(c.kind == "helm-model-spec" for c in self.launch.configs)

    # ------------------------------------------------------------------------------------------- flags
    @property
    def transfer_flags(self) -> tuple[Flag, ...]:
        """The ``--kv-transfer-config`` flags that carry JSON, in order."""
        return tuple(f for f in self.launch.flags if f.name.replace("_", "-") == "--kv-transfer-config")

    @property
    def dotted_flags(self) -> tuple[Flag, ...]:
        """The ``--kv-transfer-config.a.b`` flags, in order."""
        return tuple(f for f in self.launch.flags if f.name.replace("_", "-").startswith("--kv-transfer-config."))

    @cached_property
    def size(self) -> Flag | None:
        """``--kv-offloading-size``."""
        return self.launch.flag("--kv-offloading-size")

    @cached_property
    def size_gib(self) -> float | None:
        """Its value in GiB, ``None`` when absent, unresolved or no number."""
        text = known_text(self.size.value) if self.size else None
        try:
            return float(text) if text is not None else None
        except ValueError:
            return None

    @cached_property
    def backend_flag(self) -> Flag | None:
        """``--kv-offloading-backend``."""
        return self.launch.flag("--kv-offloading-backend")

    @property
    def backend(self) -> str | None:
        """``native`` or ``lmcache`` (the default is native), ``None`` when unresolved."""
        return "native" if self.backend_flag is None else known_text(self.backend_flag.value)

    def number(self, *names: str) -> int | float | None:
        """Return the numeric value of a flag, ``None`` when absent or not known."""
        flag = self.launch.flag(*names)
        text = known_text(flag.value) if flag else None
        return human_number(text) if text is not None else None

    def _count(self, *names: str) -> int | None:
        flag = self.launch.flag(*names)
        if flag is None:
            return 1 if self.complete else None
        number = self.number(*names)
        return int(number) if number is not None and number >= 1 else None

    @cached_property
    def tensor_parallel(self) -> int | None:
        """Tensor-parallel ranks, 1 when not given, ``None`` when not known."""
        return self._count("--tensor-parallel-size", "-tp", "--tensor-parallel", "--tp", "--tp-size")

    @cached_property
    def ranks(self) -> int | None:
        """Ranks of one engine: tensor times pipeline parallel; ``None`` when not known."""
        pipeline = self._count("--pipeline-parallel-size", "-pp", "--pipeline-parallel", "--pp-size")
        if self.tensor_parallel is None or pipeline is None:
            return None
        return self.tensor_parallel * pipeline

    @cached_property
    def data_parallel(self) -> int | None:
        """Engines of one launch on this machine; each has a tier of its own."""
        local = self.launch.flag("--data-parallel-size-local", "-dpl")
        if local is not None:
            return self._count("--data-parallel-size-local", "-dpl")
        return self._count("--data-parallel-size", "-dp")

    @property
    def prefix_caching_off(self) -> Flag | None:
        """The flag that turns prefix caching off, when there is one."""
        off = self.launch.flag("--no-enable-prefix-caching", "--disable-prefix-caching")
        on = self.launch.flag("--enable-prefix-caching")
        if on is not None and on.value is not None and (known_text(on.value) or "").lower() == "false":
            return on
        if off is None or on is None:
            return off
        return off if self.launch.flags.index(off) > self.launch.flags.index(on) else None

    # -------------------------------------------------------------------------------------- connectors
    @cached_property
    def transfer_config(self) -> Config | None:
        """The JSON (or keyword) configuration, else the one built from dotted keys."""
        return self.launch.config("kv-transfer-config") or self.launch.config("kv-transfer-dotted")

    @cached_property
    def transfer(self) -> Node | None:
        """Its tree when it is an object that could be read."""
        config = self.transfer_config
        if config is None or config.error or config.node.kind != "object":
            return None
        return config.node

    @property
    def transfer_unknown(self) -> bool:
        """Whether there is a configuration that cannot be read statically."""
        config = self.transfer_config
        if config is None:
            return bool(self.transfer_flags or self.dotted_flags) or not self.complete
        return config.node.kind == "unresolved"

    @cached_property
    def uses(self) -> tuple[ConnectorUse, ...]:
        """The connectors of the transfer configuration, children of MultiConnector included."""
        return tuple(connector_uses(self.transfer, child=False)) if self.transfer is not None else ()

    @property
    def overwritten(self) -> bool:
        """Whether ``--kv-offloading-size`` replaces the connector of the transfer configuration."""
        return self.size is not None

    def use_of(self, *names: str) -> ConnectorUse | None:
        """Return the first use of one of those connectors that is not a vendor's."""
        return next((u for u in self.uses if u.name in names and not u.vendor), None)

    @cached_property
    def simple_env(self) -> bool:
        """Whether ``VLLM_USE_SIMPLE_KV_OFFLOAD`` makes the native backend the simple connector."""
        value = self.env("VLLM_USE_SIMPLE_KV_OFFLOAD")
        return value is not None and value.strip() == "1"

    @cached_property
    def running(self) -> frozenset[str]:
        """Names of the connectors that will run, ``--kv-offloading-size`` taken into account."""
        if self.size is not None:
            if self.backend == "lmcache":
                return frozenset({"LMCacheMPConnector"})
            if self.backend == "native":
                return frozenset({"SimpleCPUOffloadConnector" if self.simple_env else "OffloadingConnector"})
            return frozenset()
        return frozenset(u.name for u in self.uses if u.name and not u.vendor)

    @property
    def has_connector(self) -> bool:
        """Whether any KV connector runs, a vendor's or an unreadable one included."""
        return self.size is not None or bool(self.uses) or self.transfer_unknown

    @cached_property
    def lmcache_in_process(self) -> bool:
        """Whether LMCache runs inside vLLM's workers."""
        return "LMCacheConnectorV1" in self.running or (
            self.size is None and any(u.name in {"LMCacheConnector", "LMCacheConnectorV1Dynamic"} for u in self.uses)
        )

    @cached_property
    def lmcache_mp(self) -> bool:
        """Whether the connector talks to an ``lmcache server``."""
        return "LMCacheMPConnector" in self.running

    @cached_property
    def disaggregated(self) -> bool:
        """Whether the launch is one half of prefill/decode: a role that is not both, a transfer connector, PD keys."""
        for use in self.uses:
            role = use.node.get("kv_role")
            if use.kind == "transfer" or (role is not None and role.value in {"kv_producer", "kv_consumer"}):
                return True
        keys = {"enable_pd", "enable_nixl", "enable_xpyd", "pd_role", "nixl_role", "enable_p2p"}
        return any(s.key in keys for s in self.lmcache_settings.values()) or any(
            v.name in {"LMCACHE_ENABLE_NIXL", "LMCACHE_ENABLE_PD", "LMCACHE_ENABLE_XPYD", "LMCACHE_NIXL_ROLE"}
            for v in self.launch.env
        )

    # ------------------------------------------------------------------------------------------- sizes
    @cached_property
    def native_tiers(self) -> tuple[TierSize, ...]:
        """Host memory of the native connectors that run, where the number is known."""
        if self.size is not None:
            if self.backend != "native" or self.size_gib is None:
                return ()
            where = self.size.value.location if self.size.value else self.size.location
            return (
                TierSize(
                    bytes=int(self.size_gib * GIB),
                    location=where,
                    written=f"--kv-offloading-size {known_text(self.size.value)}",
                ),
            )
        found = []
        for use in self.uses:
            if use.vendor or use.name not in {"OffloadingConnector", "SimpleCPUOffloadConnector"}:
                continue
            for key in ("cpu_bytes_to_use", "cpu_bytes_to_use_per_rank"):
                member = use.member(key)
                number = node_number(member.node) if member else None
                if member is None or number is None:
                    continue
                per_rank = key.endswith("per_rank")
                if per_rank and use.name == "OffloadingConnector":
                    continue
                found.append(
                    TierSize(
                        bytes=int(number),
                        location=member.node.location,
                        written=f"{key} {member.node.raw or number}",
                        per_rank=per_rank,
                    )
                )
        return tuple(found)

    @cached_property
    def kv_bytes_per_token(self) -> int | None:
        """KV bytes of one token over all ranks, for models of the catalog at 16 bits; ``None`` for others."""
        model = known_text(self.launch.model)
        dtype = self.launch.flag("--kv-cache-dtype")
        if model is None or (dtype is not None and known_text(dtype.value) not in {"auto", "bfloat16", "float16"}):
            return None
        return catalog.kv_bytes_per_token(model)

    # --------------------------------------------------------------------------------------------- env
    def env(self, name: str) -> str | None:
        """Return the text of a variable that reaches the server, ``None`` when unset or not known."""
        variable = self.launch.env_var(name)
        return known_text(variable.value) if variable is not None and variable.reaches else None

    def env_set(self, name: str) -> bool:
        """Whether the variable is set for the server, known value or not."""
        variable = self.launch.env_var(name)
        return variable is not None and variable.reaches

    @cached_property
    def lmcache_settings(self) -> Mapping[str, Setting]:
        """LMCache's engine settings by key, later sources winning: YAML, then environment, then extra keys."""
        found: dict[str, Setting] = {}
        for setting in lmcache_settings(self.launch, self.uses):
            found[setting.key] = setting
        return found

    # ------------------------------------------------------------------------------------------ intent
    @cached_property
    def kv_intent(self) -> str | None:
        """Return what says that the KV cache is to be offloaded: a setting, or words; ``None`` for nothing."""
        if self.size is not None:
            return "--kv-offloading-size"
        if self.backend_flag is not None:
            return "--kv-offloading-backend"
        for use in self.uses:
            if use.kind == "store" or (use.name in catalog.curated()["retired"]):
                return str(use.name)
            if use.vendor:
                return f"the connector {use.name}" if use.name else "a KV connector"
        for variable in self.launch.env:
            if variable.name.startswith((LMCACHE_ENV, "LM_CACHE_")) or variable.name == "VLLM_USE_SIMPLE_KV_OFFLOAD":
                return variable.name
        words = intent.words_of_kv_offload(self.launch.words, self.document.path)
        if words is None:
            return None
        first = " ".join(words.split())
        return f"the text {first[:60].rstrip()!r}"
