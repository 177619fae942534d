"""Where the managed engines, models and locks live."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_ENV = "KVOFFLOAD_CACHE_DIR"


def cache_dir() -> Path:
    """The cache directory: ``KVOFFLOAD_CACHE_DIR``, or the platform's user cache. Created on demand."""
    chosen = os.environ.get(CACHE_ENV)
    if chosen:
        path = Path(chosen).expanduser().absolute()
    else:
        import platformdirs

        path = Path(platformdirs.user_cache_dir("pytest-kvoffload", appauthor=False))
    path.mkdir(parents=True, exist_ok=True)
    return path
