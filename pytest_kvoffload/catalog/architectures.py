"""Which architecture keeps what in the KV cache: lookup of ``architectures.toml`` and ``model_defaults.json``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDefaults:
    """What a configuration class of transformers (or vLLM) supplies for a ``model_type``."""

    values: dict[str, Any]
    aliases: dict[str, str] = field(default_factory=dict)
    """Attribute name to the spelling in ``config.json``."""
    text: str | None = None
    """``model_type`` of the nested text configuration, for multimodal classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How the layers of some architectures are derived from their configuration.

    ``build`` names the derivation; the other fields are its exceptions, each read in the source that is named.
    """

    build: str
    source: str
    architectures: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    """``model_type`` of text configurations that a multimodal model hands to this class."""
    versions: str = ""
    """vLLM versions that the rule holds for; empty is all known."""
    head_dim: str = "explicit"
    """``explicit``: key head_dim, else hidden_size / heads; ``divided``: always the quotient."""
    kv_heads: str = "config"
    """``config``: the usual keys; ``heads``: as many as query heads."""
    window: str = "model"
    """``model``: one for all layers; ``layer_types``, ``even``, ``rope``, ``none`` ...: see ``sizing/windows.py``."""
    window_extra: int = 0
    """Added to the configured window (Cohere counts the current token apart)."""
    ignores_cache_dtype: bool = False
    """The class builds its layers without the cache configuration, so ``--kv-cache-dtype`` has no effect."""
    refuses: dict[str, str] = field(default_factory=dict)
    """KV cache dtype (or a prefix with ``*``) to the reason why vLLM refuses it."""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPattern:
    """How a configuration class fills ``layer_types`` when the file has none."""

    model_types: tuple[str, ...]
    every: int = 0
    """Layer ``i`` is ``other`` unless ``(i + 1) % every == 0``; 0: all ``other``."""
    key: str = ""
    """Key that overrides ``every``."""
    first: bool = False
    """The full layer comes first of each period instead of last."""
    last_full: bool = False
    """The last layer is full attention whatever the pattern says."""
    other: str = "sliding_attention"
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """The whole table."""

    rule: tuple[Rule, ...]
    layer_pattern: tuple[LayerPattern, ...]
    removed: dict[str, str]
    """Architecture to the last vLLM version that had it."""
    plugin: dict[str, str]
    """Architecture to the out-of-tree plugin that has it."""
    wrapper: tuple[str, ...]
    """Multimodal architectures whose cache is that of their text model."""
    no_cache: tuple[str, ...]
    """Encoder-only architectures: they keep no KV cache."""


@functools.cache
def load_catalog() -> Catalog:
    """Read the table once."""
    import msgspec

    raw = resources.files("pytest_kvoffload.catalog").joinpath("architectures.toml").read_bytes()
    return msgspec.toml.decode(raw, type=Catalog)


@functools.cache
def load_defaults() -> Mapping[str, ModelDefaults]:
    """Read the defaults of the configuration classes once, by ``model_type``."""
    import msgspec

    raw = resources.files("pytest_kvoffload.catalog").joinpath("model_defaults.json").read_bytes()
    models = msgspec.json.decode(raw)["models"]
    return msgspec.convert(models, dict[str, ModelDefaults])


def find_rule(architecture: str, version: str) -> Rule | None:
    """Return the rule of an architecture at a vLLM version, ``None`` when there is none."""
    for rule in load_catalog().rule:
        if architecture in rule.architectures and _holds(rule, version):
            return rule
    return None


def find_text_rule(model_type: str, version: str) -> Rule | None:
    """Return the rule of a text configuration's ``model_type``, ``None`` when there is none."""
    for rule in load_catalog().rule:
        if model_type in rule.model_types and _holds(rule, version):
            return rule
    return None


def known_architectures() -> tuple[str, ...]:
    """Return every architecture that a rule or a wrapper names."""
    catalog = load_catalog()
    names = {name for rule in catalog.rule for name in rule.architectures}
    return tuple(sorted(names | set(catalog.wrapper) | set(catalog.no_cache)))


def _holds(rule: Rule, version: str) -> bool:
    return not rule.versions or SpecifierSet(rule.versions).contains(Version(version), prereleases=True)
