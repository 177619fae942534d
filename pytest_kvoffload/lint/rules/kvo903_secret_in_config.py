"""A secret written in clear in a tier's configuration.

Keys of an object store and passwords in a remote URL end in process lists, logs, reports and `/server_info`. Leave them
to the environment or to a mounted file. The finding never prints the secret.

Bad:

```sh serve.sh
export PYTHONHASHSEED=0
export NIXL_TELEMETRY_ENABLE=y
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"secondary_tiers":[{"type":"obj","store_config":{"bucket":"kv","endpoint_override":"http://minio:9000","secret_key":"wJalrXUtnFEMI7MDENG"}}]}}'
```

Good:

```sh serve.sh
export PYTHONHASHSEED=0
export NIXL_TELEMETRY_ENABLE=y
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"secondary_tiers":[{"type":"obj","store_config":{"bucket":"kv","endpoint_override":"http://minio:9000"}}]}}'
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch, Node
from pytest_kvoffload.lint.numbers import (
    known_text,
)
from pytest_kvoffload.lint.rule import Rule

SECRET_KEY = re.compile(
    r"(?:secret|password|passwd|session_token|access_token|auth_token|api_?key|private_key|credential|sas_token)",
    re.IGNORECASE,
)
ACCESS_KEY = re.compile(r"access_?key", re.IGNORECASE)
URL_PASSWORD = re.compile(r"\w+://[^/\s:@]*:([^@/\s]+)@")
PLACEHOLDER = re.compile(
    r"\A\s*\Z|\$|\{[^}]*\}|%[({]|\{\{|<[^>]*>|\A[x*.]+\Z|\A(?:your|my|changeme|change[-_]me|placeholder|example|dummy|redacted|secret|none|null|todo)",
    re.IGNORECASE,
)
RULE = Rule(
    code="KVO903",
    name="secret-in-config",
    severity="error",
    loose=True,
    products=("vllm", "sglang", "lmcache-server", "unknown"),
    summary="A key or password in clear in a tier's configuration",
    remedy="leave it to the environment (AWS_SECRET_ACCESS_KEY and the like) or a mounted secret",
    evidence="vLLM v1/kv_offload/tiering/obj/config.py; LMCache LMCACHE_REMOTE_URL, LMCACHE_RESP_PASSWORD",
)
ENV_SECRETS = {"LMCACHE_RESP_PASSWORD", "LMCACHE_AEROSPIKE_PASSWORD"}


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report literals under keys that hold secrets; the text is never repeated."""
    for config in launch.configs:
        if config.kind in {"kv-transfer-config", "kv-transfer-dotted", "lmcache-yaml"}:
            yield from _walk(config.node)
    for variable in launch.env:
        text = known_text(variable.value)
        if text is None:
            continue
        if variable.name in ENV_SECRETS and not PLACEHOLDER.search(text):
            yield RULE.at(variable.location, f"{variable.name} holds a secret in clear")
        elif variable.name.startswith("LMCACHE_") and _has_password(text):
            yield RULE.at(variable.location, f"{variable.name} holds a password in clear")


def _has_password(text: str) -> bool:
    match = URL_PASSWORD.search(text)
    return match is not None and not PLACEHOLDER.search(match.group(1))


def _walk(node: Node) -> Iterator[Diagnostic]:
    for member in node.members:
        value = member.node
        if value.kind == "string":
            text = str(value.value)
            named = SECRET_KEY.search(member.key) or (ACCESS_KEY.search(member.key) and len(text) >= 8)
            if named and not PLACEHOLDER.search(text) and not member.key.endswith(("_file", "_path", "_env", "_name")):
                yield RULE.at(member.location, f"{member.key} is written in clear: it ends in process lists and logs")
            elif _has_password(text):
                yield RULE.at(member.location, f"{member.key} holds a password in clear")
        yield from _walk(value)
    for item in node.items:
        yield from _walk(item)
