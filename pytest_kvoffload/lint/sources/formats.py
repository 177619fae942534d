"""Which reader a file needs, told from its name and its first lines."""

from __future__ import annotations

import re

TRIGGERS = (
    b"vllm", b"lmcache", b"lm_cache", b"kv-transfer", b"kv_transfer", b"kvtransfer", b"kv-offload", b"kv_offload",
    b"kvoffload", b"cpu-offload-gb", b"cpu_offload_gb", b"offloadingconnector", b"hicache", b"hierarchical-cache",
    b"hierarchical_cache", b"sglang", b"swap-space", b"swap_space", b"kv_connector", b"local_cpu", b"max_local_disk",
)  # fmt: skip
"""Lower-case words, one of which stands in every file that a reader could find something in."""

_TRIGGER_BYTES = re.compile(b"|".join(re.escape(t) for t in TRIGGERS), re.IGNORECASE)
_TRIGGER_TEXT = re.compile("|".join(re.escape(t.decode()) for t in TRIGGERS), re.IGNORECASE)


def interesting(raw: bytes) -> bool:
    """Tell in one pass over the bytes whether a file is worth decoding and reading."""
    return _TRIGGER_BYTES.search(raw) is not None


def trigger(text: str) -> bool:
    """The same for decoded text."""
    return _TRIGGER_TEXT.search(text) is not None


_SHELL_FIRST = re.compile(r"^#!.*\b(?:ba|z|da|k|a)?sh\b")
_PYTHON_FIRST = re.compile(r"^#!.*\bpython")
_LMCACHE_KEY = re.compile(
    r"(?m)^(?:chunk_size|local_cpu|max_local_cpu_size|local_disk|max_local_disk_size|remote_url|remote_serde|"
    r"save_decode_cache|enable_p2p|enable_pd|enable_controller|lmcache_instance_id|save_unfull_chunk|cache_policy|"
    r"enable_nixl|nixl_\w+|pd_\w+|gds_path|enable_blending|use_layerwise|extra_config|lookup_timeout_ms|"
    r"internal_api_server_\w+|numa_mode|storage_plugins|priority_limit|enable_lazy_memory_allocator)[ \t]*:"
)
_VLLM_KEY = re.compile(
    r"(?m)^(?:model|served[-_]model[-_]name|tensor[-_]parallel[-_]size|max[-_]model[-_]len|gpu[-_]memory[-_]utilization|"
    r"kv[-_]transfer[-_]config|kv[-_]offloading[-_](?:size|backend)|enable[-_]prefix[-_]caching|cpu[-_]offload[-_]gb|"
    r"swap[-_]space|max[-_]num[-_](?:seqs|batched[-_]tokens)|kv[-_]cache[-_]dtype)[ \t]*:"
)


_SHELL_LOOK = re.compile(
    r"(?m)^\s*(?:export\s+\w+=|[A-Z_][A-Z0-9_]*=\S*(?:\s|$)|\$\s+\S|(?:sudo\s+|exec\s+|nohup\s+|srun\s+)?"
    r"(?:docker|podman|vllm|lmcache|python3?|sglang|kubectl|torchrun|ray|uv|srun|ssh|bash|sh|nohup)\s+\S)"
)


def sniff(path: str, text: str) -> str:
    """Return the reader's name for a file, ``""`` when no reader knows the format."""
    name = path.replace("\\", "/").rsplit("/", 1)[-1].lower()
    first = text[:200].lstrip("\ufeff").split("\n", 1)[0]
    if _SHELL_FIRST.match(first):
        return "sbatch" if re.search(r"(?m)^#SBATCH\s", text[:8000]) else "shell"
    if _PYTHON_FIRST.match(first):
        return "python"
    by_name = _by_name(name, path, text)
    if by_name is not None:
        return by_name
    return _by_content(text)


def _by_name(name: str, path: str, text: str) -> str | None:
    if name.endswith((".sh", ".bash", ".zsh", ".ksh", ".command", ".envrc")):
        return "sbatch" if re.search(r"(?m)^#SBATCH\s", text[:8000]) else "shell"
    if name.endswith((".sbatch", ".slurm", ".slrm")):
        return "sbatch"
    if name.endswith((".service", ".container")) or re.search(r"\.service\.d/[^/]+\.conf$", path):
        return "systemd"
    if re.match(r"^(?:.*[._-])?(?:docker|container)file(?:[._-].*)?$", name):
        return "dockerfile"
    if name.endswith((".py", ".pyi")):
        return "python"
    if name.endswith(".ipynb"):
        return "notebook"
    if name.endswith((".md", ".mdx", ".markdown", ".rst")):
        return "markdown"
    if name.endswith(".toml") or name in ("uv.lock", "poetry.lock", "pdm.lock", "pipfile"):
        return "toml"
    if name.endswith((".json", ".jsonc")):
        return "json"
    if name == ".env" or name.endswith(".env") or name.startswith(".env."):
        return "dotenv"
    if re.match(r"^(?:requirements|constraints).*\.(?:txt|in)$", name):
        return "requirements"
    if name.endswith((".yaml", ".yml", ".tpl", ".gotmpl", ".j2", ".jinja", ".jinja2", ".yamll")):
        if name.endswith((".j2", ".jinja", ".jinja2", ".tpl", ".gotmpl")) and not re.search(r"\.ya?ml\.", name):
            return _by_content(text) or "yaml"
        return _yaml_kind(name, path, text)
    if "." in name.strip(".") and not name.endswith(
        (".conf", ".tmpl", ".template", ".j2", ".jinja2", ".in", ".run", ".txt")
    ):
        return ""
    return None


def _by_content(text: str) -> str:
    head = text[:20_000]
    if re.search(r"(?m)^#SBATCH\s", head):
        return "sbatch"
    if re.search(r"(?m)^\[Service\]\s*$", head) and re.search(r"(?m)^Exec", head):
        return "systemd"
    if re.search(r"(?m)^apiVersion\s*:", head) or re.search(r"(?m)^services\s*:", head):
        return _yaml_kind("", "", text)
    if re.match(r"(?s)\A(?:\s*#[^\n]*\n|\s+)*(?:FROM\s+\S+|ARG\s+\w+)", head) and "\nFROM " in "\n" + head:
        return "dockerfile"
    if head.lstrip().startswith("{"):
        return "json"
    if _LMCACHE_KEY.search(head):
        return "lmcache-yaml"
    if re.search(r"(?m)^\s*(?:import|from)\s+[\w.]+", head) and re.search(r"(?m)^\s*(?:def|class|if __name__)\b", head):
        return "python"
    return "shell" if _SHELL_LOOK.search(head) else ""


def _yaml_kind(name: str, path: str, text: str) -> str:
    """Choose between the YAML dialects; the YAML reader looks again once the text is parsed."""
    if re.search(r"(?:^|/)\.github/workflows/|(?:^|/)action\.ya?ml$", path.replace("\\", "/")):
        return "workflow"
    return "yaml"


def looks_like_lmcache(text: str) -> bool:
    """Whether top-level keys are LMCache's."""
    return _LMCACHE_KEY.search(text) is not None


def looks_like_vllm_config(text: str) -> bool:
    """Whether top-level keys are flags of ``vllm serve``."""
    return _VLLM_KEY.search(text) is not None
