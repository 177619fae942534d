"""Hiding secrets in everything that is shown or stored: command lines, environments, configurations."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from pytest_kvoffload.records import ConnectorConfig, ServerInfo

MASK = "***"
_URL_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/@\s:]*:[^/@\s]*@")
_URL_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/@\s:]*:([^/@\s]*)@")
SHORTEST_SECRET = 4
_NO_SECRETS = frozenset({"none", "null", "true", "false", "empty", MASK})
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


def has_secret(text: str) -> bool:
    """Whether a text carries a URL with a password."""
    return _URL_CREDENTIALS.search(text) is not None


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


def secret_values(command: Iterable[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Collect the secrets that a process is given, so that they can be taken out of what it prints.

    Values of secret names in its environment, flags and JSON arguments, and the passwords of URLs; each also in the
    spellings in which a program may print it (URL-quoted, escaped). Words of fewer than four characters, and those
    that stand for "none", are no secrets.
    """
    found: set[str] = set()
    for name, value in env.items():
        _collect(value, name, found)
    hidden = False
    for word in command:
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            hidden = is_secret_name(flag) and not equals
            if equals:
                _collect(value, flag, found)
        else:
            _collect(word, "secret" if hidden else "", found)
            hidden = False
    spelt = {spelling for value in found for spelling in (value, quote(value, safe=""), json.dumps(value)[1:-1])}
    return tuple(sorted(spelt, key=len, reverse=True))


def _collect(value: Any, name: str, found: set[str]) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _collect(item, str(key), found)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(item, name, found)
    elif isinstance(value, str):
        if is_secret_name(name) and len(value) >= SHORTEST_SECRET and value.lower() not in _NO_SECRETS:
            found.add(value)
        found.update(word for word in _URL_PASSWORD.findall(value) if len(word) >= SHORTEST_SECRET)
        if value.lstrip().startswith(("{", "[")):
            try:
                _collect(json.loads(value), "", found)
            except ValueError:
                return


def mask_connector(connector: ConnectorConfig) -> ConnectorConfig:
    """Return a connector as it may be stored: keys and passwords of its tier hidden, in its options too."""
    return dataclasses.replace(
        connector,
        options={key: _mask_option(value, name=key) for key, value in connector.options.items()},
        args=mask_command(connector.args),
        env=mask_environment(connector.env),
    )


def mask_info(info: ServerInfo) -> ServerInfo:
    """Return what a server says about itself as it may be stored: no password in the addresses of its tier."""
    clears = tuple(dataclasses.replace(clear, target=mask_text(clear.target)) for clear in info.clears)
    return dataclasses.replace(info, clears=clears)


def _mask_option(value: Any, *, name: str) -> Any:
    """A value of a configuration; JSON in a string is looked into."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return _mask_argument(value)
    return mask_value(value, name=name)


def _mask_argument(word: str) -> str:
    if word.lstrip().startswith(("{", "[")):
        try:
            return json.dumps(mask_value(json.loads(word)))
        except ValueError:
            return mask_text(word)
    return mask_text(word)
