"""A model's configuration as vLLM sees it: the text part, aliases resolved, the configuration class's defaults.

vLLM reads a ``config.json`` through the configuration classes of transformers (and a few of its own), so a key that
is absent has the class's default, and some keys have other spellings (``n_layer`` for ``num_hidden_layers``). Both
stand in ``catalog/model_defaults.json``, generated from those classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_kvoffload.catalog.architectures import ModelDefaults, load_defaults
from pytest_kvoffload.errors import SizingError

TEXT_KEYS = ("text_config", "llm_config", "language_config", "text_model_config", "decoder_config", "text_model")
"""Where a multimodal configuration keeps the part that has the KV cache, in the order of preference."""

CORE_KEYS = frozenset({"num_hidden_layers", "num_attention_heads", "hidden_size", "kv_lora_rank", "qk_rope_head_dim"})
"""Never taken from a class's defaults in a file of its own: without them it is not the configuration of a model.

A nested text configuration may leave them out (LLaVA-1.5, Gemma-3-4B do), and then has the class's defaults.
"""

MAX_LAYERS = 10_000
"""More is no model, and would only make the arithmetic slow."""


class ConfigView:
    """Typed reading of one configuration; every error names the key and the file.

    Args:
        raw: the whole ``config.json``.
        source: its name for messages.
    """

    def __init__(self, raw: Mapping[str, Any], source: str = "config.json") -> None:
        self.raw = raw
        self.source = source
        self.text, self.text_key = _text_part(raw)
        self.model_type = _string(self.text.get("model_type")) or _string(raw.get("model_type")) or ""
        if self.text is not raw and not self.text.get("model_type"):
            outer = load_defaults().get(_string(raw.get("model_type")) or "")
            self.model_type = (outer.text if outer else None) or self.model_type
        self.outer_model_type = _string(raw.get("model_type")) or self.model_type
        table = load_defaults()
        outer = table.get(self.model_type)
        if self.text is raw and outer is not None and outer.text:
            # A multimodal configuration with its text keys at the top level: transformers files them into the
            # text class.
            self.defaults: ModelDefaults | None = table.get(outer.text, outer)
            self.text_model_type = outer.text
        else:
            self.defaults = outer
            self.text_model_type = self.model_type

    @property
    def architectures(self) -> tuple[str, ...]:
        """The class names that the configuration gives, whole model first."""
        names = self.raw.get("architectures")
        if names is None:
            names = []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise SizingError(f"{self.source}: architectures is {names!r}; expected a list of class names")
        return tuple(names)

    def has(self, key: str) -> bool:
        """Whether the key (or an alias, or a default) has a value other than null."""
        return self.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key of the text part: written, by alias, or the class's default."""
        for name in self._spellings(key):
            if name in self.text:
                return self.text[name]
        if self.defaults is not None and key in self.defaults.values:
            return self.defaults.values[key]
        return default

    def written(self, key: str) -> Any:
        """Return the value that is written in the text part (aliases included), ``None`` when it is absent."""
        for name in self._spellings(key):
            if name in self.text:
                return self.text[name]
        return None

    def _spellings(self, key: str) -> tuple[str, ...]:
        if self.defaults is None:
            return (key,)
        alias = self.defaults.aliases.get(key)
        back = tuple(name for name, target in self.defaults.aliases.items() if target == key)
        return (key, *((alias,) if alias else ()), *back)

    def integer(self, key: str, *, minimum: int = 1, default: int | None = None, maximum: int = 2**40) -> int:
        """Return a whole number.

        Raises:
            SizingError: absent without default, not a whole number, or out of range; the message names the key.
        """
        value = self.get(key)
        if value is None or (key in CORE_KEYS and not self.text_key and self.written(key) is None):
            if default is not None:
                return default
            raise SizingError(f"{self._where(key)}: missing; sizing a {self._kind()} needs it")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or int(value) != value:
            raise SizingError(f"{self._where(key)}: got {value!r}; expected a whole number")
        number = int(value)
        if number < minimum:
            raise SizingError(f"{self._where(key)}: got {number}; expected {minimum} or more")
        if number > maximum:
            raise SizingError(f"{self._where(key)}: got {number}; expected at most {maximum}")
        return number

    def first_integer(self, keys: tuple[str, ...], *, minimum: int = 1, maximum: int = 2**40) -> int:
        """Return the first of several keys that has a value; the error names the first key."""
        for key in keys:
            if self.get(key) is not None:
                return self.integer(key, minimum=minimum, maximum=maximum)
        return self.integer(keys[0], minimum=minimum, maximum=maximum)

    def optional_integer(self, key: str, *, minimum: int = 0) -> int | None:
        """Return a whole number or ``None``; ``SizingError`` names the key when it is something else."""
        return None if self.get(key) is None else self.integer(key, minimum=minimum)

    def number(self, key: str, *, default: float) -> float:
        """Return a positive number, ``default`` when absent."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise SizingError(f"{self._where(key)}: got {value!r}; expected a positive number")
        return float(value)

    def flag(self, key: str) -> bool:
        """Return a truth value; absent is false."""
        return bool(self.get(key))

    def strings(self, key: str) -> tuple[str, ...] | None:
        """Return a list of strings, ``None`` when absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise SizingError(f"{self._where(key)}: got {str(value)[:60]!r}; expected a list of strings")
        return tuple(value)

    def integers(self, key: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers, ``None`` when absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
            raise SizingError(f"{self._where(key)}: got {str(value)[:60]!r}; expected a list of whole numbers")
        return tuple(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Return an object; absent is empty."""
        value = self.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise SizingError(f"{self._where(key)}: got {str(value)[:60]!r}; expected an object")
        return value

    def bad(self, key: str, why: str) -> SizingError:
        """Build the error for a key whose value makes no sense."""
        return SizingError(f"{self._where(key)}: {why}")

    def _where(self, key: str) -> str:
        spelled = next((name for name in self._spellings(key) if name in self.text), key)
        return f"{self.source}: {self.text_key + '.' if self.text_key else ''}{spelled}"

    def _kind(self) -> str:
        return (self.architectures or (self.model_type,))[0] or "model"


def _text_part(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    thinker = raw.get("thinker_config")
    if isinstance(thinker, dict):
        inner, key = _text_part(thinker)
        return inner, f"thinker_config.{key}" if key else "thinker_config"
    for key in TEXT_KEYS:
        value = raw.get(key)
        if isinstance(value, dict) and value:
            return value, key
    return raw, ""


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
