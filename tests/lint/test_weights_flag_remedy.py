"""What KVO101 tells to write must not itself be a mistake: beside a connector a size flag would overwrite it."""

from __future__ import annotations

import pytest

from pytest_kvoffload.lint import lint_text

LMCACHE = """--kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'"""


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (
            f"vllm serve m --cpu-offload-gb 4 {LMCACHE}",
            "remove it; LMCacheConnectorV1 takes the size of its tier from LMCACHE_MAX_LOCAL_CPU_SIZE (GiB per rank)",
        ),
        (
            "vllm serve m --cpu-offload-gb 4 --kv-offloading-size 8",
            "remove it; --kv-offloading-size already sizes the tier",
        ),
        (
            "# offload the KV cache\nvllm serve m --cpu-offload-gb 4",
            "to move the KV cache, write --kv-offloading-size GIB (host memory in GiB, total over the ranks) instead",
        ),
    ],
)
def test_the_remedy_fits_what_runs_already(command: str, remedy: str) -> None:
    (finding,) = [f for f in lint_text("serve.sh", command) if f.code == "KVO101"]
    assert finding.remedy == remedy
