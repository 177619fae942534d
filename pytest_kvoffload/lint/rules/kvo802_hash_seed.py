"""A shared or lasting tier without a fixed hash seed.

Until 0.28 every process starts its block hashes from a random number unless `PYTHONHASHSEED` is set: blocks on a disk, in an
object store or of a peer are never found again by another process, or after a restart. From 0.29 sha256 hashes have a
fixed seed; xxhash ones still do not. In-process LMCache hashes with Python's own `hash` and needs the seed with more than
one rank or with a remote store, whatever the vLLM version.

Bad:

```sh run.sh
docker run --ipc=host vllm/vllm-openai:v0.28.0 --model m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"secondary_tiers":[{"type":"fs","root_dir":"/shared/kv"}]}}'
```

Good:

```sh run.sh
docker run --ipc=host -e PYTHONHASHSEED=0 vllm/vllm-openai:v0.28.0 --model m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"secondary_tiers":[{"type":"fs","root_dir":"/shared/kv"}]}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
)
from pytest_kvoffload.lint.rule import Rule

SHARED = {"fs", "obj", "p2p"}
RULE = Rule(
    code="KVO802",
    name="hash-seed",
    severity="error",
    versions="0.26-0.28; LMCache in-process: all",
    summary="A shared tier without PYTHONHASHSEED never hits across processes",
    remedy="set PYTHONHASHSEED=0 for every server that shares the tier",
    evidence="vLLM v1/core/kv_cache_utils.py 0.26:99-114, 0.29; vLLM issue 42625, LMCache issue 2979",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report tiers that outlive or leave the process and have no common seed."""
    variable = launch.env_var("PYTHONHASHSEED")
    seeded = variable is not None and variable.reaches and known_text(variable.value) != "random"
    if seeded or not launch.env_complete:
        return
    algorithm = launch.flag("--prefix-caching-hash-algo")
    name = known_text(algorithm.value) if algorithm is not None else "sha256"
    random_always = bool(name and name.startswith("xxhash"))
    fixed = context.vllm.at_least("0.29") is True and not random_always
    unsure = context.vllm.exact is None and not random_always
    for use in context.uses:
        for tier in use.tiers() if use.tiering and not fixed and context.size is None else ():
            kind = tier.get("type")
            if kind is None or kind.value not in SHARED:
                continue
            why = (
                "xxhash is seeded at random" if random_always else "before vLLM 0.29 hashes start from a random number"
            )
            yield RULE.at(
                tier.location,
                f"the {kind.value} tier never hits after a restart or from another server without PYTHONHASHSEED: {why}",
                severity="warning" if unsure else None,
                versions="all" if random_always else "0.26-0.28",
            )
    yield from _lmcache(launch, context)


def _lmcache(launch: Launch, context: Context) -> Iterator[Diagnostic]:
    settings = context.lmcache_settings
    algorithm = settings.get("pre_caching_hash_algorithm")
    if not context.lmcache_in_process or (algorithm is not None and algorithm.text not in {"builtin", None}):
        return
    if context.env_set("LMCACHE_CONFIG_FILE") and launch.config("lmcache-yaml") is None:
        return
    remote = next((settings[k] for k in ("remote_url", "remote_storage_plugins") if k in settings), None)
    ranks = context.ranks
    use = context.use_of("LMCacheConnectorV1")
    if remote is not None:
        yield RULE.at(
            remote.location,
            f"{remote.name}: keys of different servers never match without a common PYTHONHASHSEED",
            severity="warning",
            versions="all",
        )
    elif use is not None and ranks is not None and ranks > 1:
        yield RULE.at(
            use.location,
            f"LMCache over {ranks} ranks without PYTHONHASHSEED: every process hashes differently and nothing hits",
            severity="warning",
            versions="all",
        )
