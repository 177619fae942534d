"""Choose nixl's build whose object-store plugin loads, where vLLM runs on its CPU backend.

nixl ships one build for each CUDA and takes the one of the CUDA that the process has imported, else the newest. Its
CUDA 13 build's OBJ plugin wants libcuobjclient.so.1, which a machine without CUDA does not have; the CUDA 12 build's
wants nothing of the kind (nixl 1.5.1). On the CPU backend neither is used for anything else.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys

LIBRARY = "libcuobjclient.so.1"


def prefer_loadable() -> bool:
    """Make ``import nixl`` take the CUDA 12 build, where that is the one that works; return whether it was asked to.

    It changes nothing when torch has CUDA, when the library is there, when only one build is installed, or when nixl
    is loaded already.
    """
    if "nixl" in sys.modules or any(importlib.util.find_spec(f"nixl_cu{n}") is None for n in (12, 13)):
        return False
    try:
        import nixl_meta_utils  # type: ignore[import-not-found]
        import torch
    except ImportError:
        return False
    if torch.version.cuda is not None or not hasattr(nixl_meta_utils, "detect_cuda_major") or _loads(LIBRARY):
        return False
    nixl_meta_utils.detect_cuda_major = lambda: 12
    return True


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
