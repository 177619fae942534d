"""An entry of `secondary_tiers` that vLLM refuses.

Each entry needs a `type` (`fs`, `obj`, `p2p`, `kvcr`, `example`) or a module of its own, and the keys of that type; an
unknown key is a `TypeError` at boot. `fs` needs `root_dir`, `obj` needs `store_config` with `bucket` and
`endpoint_override`.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"secondary_tiers":[{"type":"fs","root":"/kv"}]}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"secondary_tiers":[{"type":"fs","root_dir":"/kv"}]}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch, Node
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO312",
    name="tier-entry",
    severity="error",
    summary="A secondary tier without type, of unknown type, or with missing or unknown keys",
    remedy='write the keys of that tier type, such as {"type": "fs", "root_dir": "/path"}',
    evidence="vLLM v1/kv_offload/tiering/factory.py, fs/manager.py, obj/manager.py; measured on 0.32",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report entries that end the boot, and keys of open tier types that nothing reads."""
    for use in context.uses:
        if not use.tiering or use.vendor or use.own_spec:
            continue
        tiers = use.option("secondary_tiers")
        for item in tiers.items if tiers is not None and tiers.kind == "array" else ():
            if item.kind == "object":
                yield from _entry(item, context)
            elif item.kind != "unresolved":
                yield RULE.at(item.location, "an entry of secondary_tiers must be an object")


def _entry(item: Node, context: Context) -> Iterator[Diagnostic]:
    data = catalog.curated()
    kind = item.get("type")
    if item.get("module_path") is not None or (kind is not None and kind.kind == "unresolved"):
        return
    if kind is None:
        yield RULE.at(item.location, "a secondary tier without type is refused at boot", remedy='add "type": "fs"')
        return
    name = str(kind.value)
    if name not in data["tiers"]:
        new = data["tier_renames"].get(name)
        hint = f" (did you mean {new!r}?)" if new else did_you_mean(name, data["tiers"])
        yield RULE.at(kind.location, f"there is no secondary tier {name!r}{hint}", remedy="write fs, obj, p2p or kvcr")
        return
    tier = data["tiers"][name]
    if "since" in tier and context.vllm.before(tier["since"]):
        yield RULE.at(
            kind.location, f"the tier {name!r} exists from vLLM {tier['since']} on", versions=tier["since"] + "+"
        )
    yield from _keys(item, name, tier)
    store = item.get("store_config")
    if "store_config" in tier and store is not None and store.kind == "object":
        yield from _keys(store, "store_config", {**tier["store_config"], "closed": True})


def _keys(item: Node, name: str, tier: dict[str, object]) -> Iterator[Diagnostic]:
    known = [str(k) for k in tier["keys"]] if isinstance(tier["keys"], list) else []
    keys = [m.key for m in item.members]
    required = tier["required"] if isinstance(tier["required"], list) else []
    for key in required:
        if key not in keys and not any(did_you_mean(k, [str(key)], cutoff=0.6) for k in keys if k not in known):
            yield RULE.at(item.location, f"{name} needs {key}: the engine does not boot", remedy=f'add "{key}"')
    if not known:
        return
    for member in item.members:
        if member.key in known:
            continue
        hint = did_you_mean(member.key, known, cutoff=0.55)
        if tier.get("closed"):
            yield RULE.at(member.location, f"{name} has no key {member.key!r}{hint}: TypeError at boot")
        else:
            yield RULE.at(
                member.location,
                f"{name} never reads {member.key!r}{hint}: it is dropped without a word",
                severity=None if hint else "warning",
            )
