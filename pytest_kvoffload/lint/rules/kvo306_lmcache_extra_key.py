"""An LMCache option in `kv_connector_extra_config` that LMCache does not read.

LMCache reads `lmcache.<key>` for the in-process connector and `lmcache.mp.<key>` for MP mode. A key without its prefix
is ignored without a word, an unknown one is ignored with a line in the log.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both","kv_connector_extra_config":{"max_local_cpu_size":20}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both","kv_connector_extra_config":{"lmcache.max_local_cpu_size":20}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch, Member
from pytest_kvoffload.lint.parts import ConnectorUse
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO306",
    name="lmcache-extra-key",
    severity="error",
    summary="An LMCache key without its lmcache. prefix, misspelt, or of the other mode",
    remedy="write lmcache.KEY (in-process) or lmcache.mp.KEY (MP mode)",
    evidence="LMCache 0.5.6 config_base.py, vllm_v1_adapter.py, multi-process adapter; measured",
)
IN_PROCESS_EXTRAS = {"lmcache.max_tokens_per_load"}


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report LMCache keys that have no reader under the connector in use."""
    for use in context.uses:
        if use.extra is None or use.vendor or use.name not in {"LMCacheConnectorV1", "LMCacheMPConnector"}:
            native = use.name in {"OffloadingConnector", "SimpleCPUOffloadConnector"}
            if native and not use.vendor and use.extra is not None and context.size is None:
                for member in use.extra.members:
                    if member.key.startswith("lmcache."):
                        yield RULE.at(member.location, f"{use.name} ignores {member.key}: it is a key of LMCache")
            continue
        for member in use.extra.members:
            yield from _judge(use, member)


def _judge(use: ConnectorUse, member: Member) -> Iterator[Diagnostic]:
    key, engine, mp = member.key, catalog.lmcache_keys(), catalog.lmcache_mp_keys()
    in_process = use.name == "LMCacheConnectorV1"
    if key in use.entry["extra"] or key in IN_PROCESS_EXTRAS:
        return
    if key.startswith("lmcache.mp."):
        if in_process:
            yield RULE.at(
                member.location,
                f"LMCacheConnectorV1 ignores {key}: it is a key of MP mode",
                remedy='use "kv_connector": "LMCacheMPConnector", or drop the key',
            )
        elif key not in mp:
            hint = did_you_mean(key, mp, cutoff=0.8)
            yield RULE.at(member.location, f"LMCache reads no key {key!r}{hint}", severity=None if hint else "warning")
    elif key.startswith("lmcache."):
        bare = key[len("lmcache.") :]
        if not in_process:
            hint = f" (did you mean 'lmcache.mp.{bare}'?)" if f"lmcache.mp.{bare}" in mp else ""
            yield RULE.at(member.location, f"MP mode ignores {key}: only lmcache.mp.* keys are read{hint}")
        elif bare not in engine and not bare.startswith(("extra_config", "internal_api")):
            hint = did_you_mean(bare, engine, cutoff=0.8)
            yield RULE.at(
                member.location, f"LMCache has no setting {bare!r}{hint}", severity=None if hint else "warning"
            )
    elif in_process and key in engine:
        yield RULE.at(member.location, f"{key!r} has no prefix: LMCache ignores it", remedy=f'write "lmcache.{key}"')
    elif in_process and key in {"cpu_bytes_to_use", "cpu_bytes_to_use_per_rank"}:
        yield RULE.at(
            member.location,
            f"LMCacheConnectorV1 ignores {key}",
            remedy="size LMCache with LMCACHE_MAX_LOCAL_CPU_SIZE: GiB, for each rank",
        )
    elif not in_process and (f"lmcache.mp.{key}" in mp or key in engine):
        yield RULE.at(
            member.location,
            f"MP mode ignores {key!r}",
            remedy=f'write "lmcache.mp.{key}"' if f"lmcache.mp.{key}" in mp else "set it on the lmcache server",
        )
