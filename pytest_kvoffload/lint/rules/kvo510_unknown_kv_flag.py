"""A KV flag that vLLM does not have.

Misspelt flags end the start with `unrecognized arguments`. Reported are flags that speak of KV offloading; other unknown
flags are vLLM's business.

Bad:

```sh serve.sh
vllm serve m --kv-offload-size 10
```

Good:

```sh serve.sh
vllm serve m --kv-offloading-size 10
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

KV = re.compile(
    r"--(?:no-|enable-|disable-)?(?:kv-|cpu-kv|kvcache|kv_|cpu-offload|lmcache|kv$|offload-kv|kv-cache|host-kv|swap|cache-offload)"
)
FOREIGN = re.compile(
    r"--(?:kv-connector|kv-events?-|kv-router|kv-cache-block|kv-overlap|kv-block|lmcache-port|lmcache-config)"
)
RULE = Rule(
    code="KVO510",
    name="unknown-kv-flag",
    severity="error",
    versions="0.26-0.33",
    summary="A flag about KV offloading that vLLM does not have",
    remedy="use a flag of vLLM",
    evidence="vLLM engine/arg_utils.py 0.26-0.33: the parser's own list",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report flags that the parser of the known version, or of every version, refuses."""
    if context.vllm.before("0.20") or launch.flag("--endpoint-type"):
        return
    known = catalog.vllm_flags(context.vllm.text)
    removed = catalog.curated()["removed_flags"]
    runner = document.text and re.search(
        r"dynamo|llmd|trtllm|ktransformers", " ".join(str(w.text) for w in launch.words[:3])
    )
    for flag in launch.flags:
        name = flag.name.split(".", 1)[0].replace("_", "-")
        if not name.startswith("--") or not KV.match(name) or name in known or name in removed:
            continue
        if name.replace("--no-", "--", 1) in known or any(k.startswith(name) for k in known):
            continue  # argparse takes an unambiguous beginning of a flag
        newer = name in catalog.vllm_flags()
        hint = did_you_mean(name, [k for k in known if "kv" in k or "offload" in k], cutoff=0.7)
        foreign = FOREIGN.match(name) or runner
        if foreign and not hint:
            continue
        where = f"vLLM {context.vllm.text}" if context.vllm.text else "vLLM 0.26 to 0.33"
        yield RULE.at(
            flag.location,
            f"{where} has no flag {flag.name}{hint}" + (": it came later" if newer else ""),
            severity="warning" if (not hint and not newer and context.vllm.exact is None) or foreign else None,
        )
