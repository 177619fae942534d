"""An LMCache file and variables that say different things.

With `LMCACHE_CONFIG_FILE` set, variables of the same key win over the file. Where both are readable and differ, one of
the two is not what its reader thinks.

Bad:

```sh run.sh
cat > /tmp/lmcache.yaml <<'EOF'
max_local_cpu_size: 40
EOF
export LMCACHE_CONFIG_FILE=/tmp/lmcache.yaml
export LMCACHE_MAX_LOCAL_CPU_SIZE=5
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh run.sh
cat > /tmp/lmcache.yaml <<'EOF'
max_local_cpu_size: 40
EOF
export LMCACHE_CONFIG_FILE=/tmp/lmcache.yaml
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO409",
    name="config-file-and-env",
    severity="warning",
    products=("vllm", "sglang"),
    summary="LMCACHE_CONFIG_FILE and LMCACHE_ settings together: the variables win",
    remedy="keep each setting in one place",
    evidence="LMCache config.py 0.5.6: defaults, file, environment, extra keys, the later wins",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report keys that both say, and note settings beside a file that cannot be read here."""
    if not (context.env_set("LMCACHE_CONFIG_FILE") and (context.lmcache_in_process or launch.product == "sglang")):
        return
    config = launch.config("lmcache-yaml")
    in_file = {m.key: m.node for m in config.node.members} if config is not None else {}
    for setting in context.lmcache_settings.values():
        if setting.origin != "env":
            continue
        node = in_file.get(setting.key)
        if node is not None and node.value is not None and str(node.value) != setting.text:
            yield RULE.at(
                setting.location,
                f"{setting.name} and {setting.key} of the LMCache file differ: the variable wins",
            )
        elif config is None:
            yield RULE.at(
                setting.location,
                f"{setting.name} stands beside LMCACHE_CONFIG_FILE and wins over the file's {setting.key}",
                confidence="medium",
            )
