"""Hiding secrets in everything that is shown or stored: command lines, environments, configurations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"
_URL_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/@\s:]*:[^/@\s]*@")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset({"secret", "secrets", "password", "passwd", "passphrase", "credential", "credentials"})
_KEY_BEFORE = frozenset({"access", "api", "private", "secret", "account", "auth", "encryption"})


def is_secret_name(name: str) -> bool:
    """Whether a key, variable or flag of this name holds a secret (``HF_TOKEN``, ``access_key``, ``--api-key``).

    ``tokens``, ``tokenizer`` and ``max_model_len`` are not: only a name that *ends* in ``token`` counts.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    if _SECRET_WORDS & set(words) or words[-1] == "token":
        return True
    return any(word in ("key", "keys") and words[i - 1] in _KEY_BEFORE for i, word in enumerate(words) if i)


def mask_text(text: str) -> str:
    """Hide the user and password of every URL in a text."""
    return _URL_CREDENTIALS.sub(rf"\g<scheme>{MASK}@", text)


def mask_value(value: Any, *, name: str = "") -> Any:
    """Return a copy of a JSON-like value in which secrets are replaced."""
    if name and is_secret_name(name) and value not in (None, ""):
        return MASK
    if isinstance(value, Mapping):
        return {str(key): mask_value(item, name=str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_value(item) for item in value]
    return mask_text(value) if isinstance(value, str) else value


def mask_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Hide secret variables, and credentials in the URLs of the others."""
    return {name: str(mask_value(value, name=name)) for name, value in env.items()}


def mask_command(words: Iterable[str]) -> tuple[str, ...]:
    """Hide secrets in a command line: ``--api-key X``, ``--x=Y``, JSON arguments and URLs."""
    shown: list[str] = []
    hide_next = False
    for word in words:
        if hide_next and not word.startswith("--"):
            shown.append(MASK)
            hide_next = False
            continue
        hide_next = False
        flag, equals, value = word.partition("=")
        if word.startswith("--") and is_secret_name(flag):
            shown.append(f"{flag}={MASK}" if equals else word)
            hide_next = not equals
        elif equals and word.startswith("--"):
            shown.append(f"{flag}={_mask_argument(value)}")
        else:
            shown.append(_mask_argument(word))
    return tuple(shown)


def _mask_argument(word: str) -> str:
    if word.lstrip().startswith(("{", "[")):
        try:
            return json.dumps(mask_value(json.loads(word)))
        except ValueError:
            return mask_text(word)
    return mask_text(word)
