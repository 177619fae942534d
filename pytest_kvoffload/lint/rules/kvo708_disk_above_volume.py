"""A disk tier larger than its volume.

LMCache's disk size is GiB for each rank. An `emptyDir` with a `sizeLimit` evicts the pod when it is exceeded.

Bad:

```yaml pod.yaml
apiVersion: v1
kind: Pod
metadata: {name: vllm}
spec:
  containers:
    - name: engine
      image: lmcache/vllm-openai:latest
      command: ["vllm", "serve", "m", "-tp", "2", "--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}']
      env:
        - {name: PYTHONHASHSEED, value: "0"}
        - {name: LMCACHE_LOCAL_DISK, value: "/cache"}
        - {name: LMCACHE_MAX_LOCAL_DISK_SIZE, value: "200"}
      volumeMounts: [{name: cache, mountPath: /cache}]
  volumes:
    - name: cache
      emptyDir: {sizeLimit: 100Gi}
```

Good:

```yaml pod.yaml
apiVersion: v1
kind: Pod
metadata: {name: vllm}
spec:
  containers:
    - name: engine
      image: lmcache/vllm-openai:latest
      command: ["vllm", "serve", "m", "-tp", "2", "--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}']
      env:
        - {name: PYTHONHASHSEED, value: "0"}
        - {name: LMCACHE_LOCAL_DISK, value: "/cache"}
        - {name: LMCACHE_MAX_LOCAL_DISK_SIZE, value: "40"}
      volumeMounts: [{name: cache, mountPath: /cache}]
  volumes:
    - name: cache
      emptyDir: {sizeLimit: 100Gi}
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    GIB,
    show_bytes,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO708",
    name="disk-above-volume",
    severity="error",
    summary="LMCACHE_MAX_LOCAL_DISK_SIZE times the ranks exceeds the volume's size limit",
    remedy="make the size smaller (it is for each rank) or the volume larger",
    evidence="LMCache local_disk_backend.py 0.5.6; LMCache issue 1399",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Compare the disk tier with the volume that its path lies on."""
    ranks = context.ranks
    path, size = context.lmcache_settings.get("local_disk"), context.lmcache_settings.get("max_local_disk_size")
    if ranks is None or path is None or size is None or not path.text or not size.number:
        return
    folder = re.sub(r"^file://", "", path.text.strip()).rstrip("/") + "/"
    mounts = [m for m in launch.limits.mounts if folder.startswith(m.mount_path.rstrip("/") + "/")]
    if not mounts:
        return
    mount = max(mounts, key=lambda m: len(m.mount_path))
    total = size.number * ranks * GIB
    limit = mount.size_limit
    if limit is not None and limit.bytes is not None and total > limit.bytes:
        yield RULE.at(
            size.location,
            f"{size.name} is for each rank: {show_bytes(total)} over {ranks}, and {mount.mount_path} is limited to {limit.raw}",
        )
