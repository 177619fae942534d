"""Finding and reading a model's ``config.json``: a file, a folder, or a name in the local Hugging Face cache.

Nothing is downloaded. The cache layout is that of huggingface_hub: ``$HF_HUB_CACHE`` (or ``$HF_HOME/hub``, or
``~/.cache/huggingface/hub``) / ``models--ORG--NAME`` / ``refs/REVISION`` names the folder of ``snapshots/``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_kvoffload.errors import SizingError, did_you_mean

MAX_CONFIG_BYTES = 64 * 2**20
"""Larger is no configuration; the largest known (per-layer quantisation lists) have about 7 MB."""


def hub_cache(env: Mapping[str, str] | None = None) -> Path:
    """Return the hub cache folder that huggingface_hub would use."""
    values = os.environ if env is None else env
    if explicit := values.get("HF_HUB_CACHE") or values.get("HUGGINGFACE_HUB_CACHE"):
        return Path(explicit).expanduser()
    if home := values.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    cache = values.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "hub"


def cached_models(cache: Path) -> tuple[str, ...]:
    """Return the names (``org/name``) of the models in a hub cache folder."""
    if not cache.is_dir():
        return ()
    folders = sorted(entry.name for entry in cache.iterdir() if entry.name.startswith("models--"))
    return tuple(name.removeprefix("models--").replace("--", "/", 1) for name in folders)


def locate_config(model: str, *, revision: str = "main", env: Mapping[str, str] | None = None) -> Path:
    """Return the path of a model's ``config.json``.

    Args:
        model: a ``config.json``, a folder that holds one, or a hub name that is in the local cache.
        revision: branch, tag or commit of a hub name.

    Raises:
        SizingError: nothing there; the message says where was looked, with the closest names of the cache.
    """
    path = Path(model).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        inside = path / "config.json"
        if inside.is_file():
            return inside
        if (path / "params.json").is_file():
            raise SizingError(
                f"{path} has params.json (Mistral's own format) and no config.json; sizing reads the "
                "Hugging Face format"
            )
        raise SizingError(f"{path} is a folder without config.json")
    cache = hub_cache(env)
    repo = cache / ("models--" + model.replace("/", "--"))
    if "/" in model.strip("/") and repo.is_dir():
        return _snapshot_config(repo, model, revision)
    names = cached_models(cache)
    known = f"{len(names)} models there{did_you_mean(model, names, cutoff=0.4)}" if names else "it holds no models"
    raise SizingError(
        f"model {model!r}: no such file or folder, and it is not in the local hub cache {cache} ({known}). "
        "Nothing is downloaded: give a path to config.json, or explicit numbers (--layers, "
        "--kv-heads, --head-dim, --dtype)"
    )


def _snapshot_config(repo: Path, model: str, revision: str) -> Path:
    ref = repo / "refs" / revision
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else revision
    candidate = repo / "snapshots" / commit / "config.json"
    if candidate.is_file():
        return candidate
    revisions = sorted(p.name for p in (repo / "snapshots").glob("*") if (p / "config.json").is_file())
    if not ref.is_file() and revision == "main" and len(revisions) == 1:
        return repo / "snapshots" / revisions[0] / "config.json"
    have = ", ".join(revisions) or "none"
    raise SizingError(
        f"model {model!r} is in the hub cache without config.json of revision {revision!r} (have: {have})"
    )


def read_config(path: Path) -> dict[str, Any]:
    """Read a ``config.json``.

    Raises:
        SizingError: unreadable, too large, not JSON (comments are named as such), or not an object.
    """
    try:
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise SizingError(f"{path}: {size:,} bytes is no model configuration (limit {MAX_CONFIG_BYTES:,})")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SizingError(f"{path}: not a text file ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise SizingError(f"{path}: cannot be read ({error.strerror})") from error
    return parse_config(text, source=str(path))


def parse_config(text: str, *, source: str) -> dict[str, Any]:
    """Parse the text of a ``config.json``; errors as :func:`read_config`."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        line = text.splitlines()[error.lineno - 1].strip() if text.strip() else ""
        comment = line.startswith(("//", "#", "/*")) or "//" in line[: error.colno + 2]
        why = (
            "it has comments, which JSON does not allow (vLLM cannot read it either); remove them"
            if comment
            else error.msg
        )
        raise SizingError(f"{source}:{error.lineno}:{error.colno}: not JSON: {why}: {line[:80]!r}") from error
    except RecursionError as error:
        raise SizingError(f"{source}: nested too deeply to be a model configuration") from error
    if not isinstance(data, dict):
        raise SizingError(f"{source}: expected a JSON object with the model's keys, got a {type(data).__name__}")
    return data
