"""The secondary tiers of vLLM's tiering (``fs``, ``obj``, ``p2p`` ...): validated by type, and what each brings along.

Types, keys and the versions that know them are data (``catalog/lint/data/connectors.json``). Keys of an object store
are handed to the server in its environment, never in the configuration: vLLM prints its configuration in its log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_kvoffload.catalog.lint import curated
from pytest_kvoffload.engine.connectors.interface import LaunchContext
from pytest_kvoffload.engine.options import OptionReader
from pytest_kvoffload.errors import did_you_mean

TELEMETRY = "NIXL_TELEMETRY_ENABLE"
_KEY_VARIABLES = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}
NIXL_TYPES = ("obj", "p2p")
"""Tiers that copy with nixl."""
NIXL_BUNDLE = Path("/etc/pki/tls/certs/ca-bundle.crt")
"""Where nixl 1.5.1's wheels look for trusted CAs (curl error 77 where it is not); seen with moto's server over TLS."""
SYSTEM_BUNDLES = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/ssl/ca-bundle.pem"), Path("/etc/ssl/cert.pem"))


@dataclass(slots=True, kw_only=True)
class Tiers:
    """The tiers as vLLM gets them, and what the server needs for them."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


def read_tiers(options: OptionReader, context: LaunchContext) -> Tiers:
    """Read ``secondary_tiers``.

    Raises:
        ConfigError: an unknown type or key, a value that vLLM would refuse at boot or ignore, a version too old.
    """
    listed = options.options.get("secondary_tiers")
    if not isinstance(listed, list | tuple) or not listed:
        raise options.fail("secondary_tiers", "a non-empty list of tables, each with a type", got=listed)
    found = Tiers()
    for index, tier in enumerate(listed):
        if not isinstance(tier, Mapping) or not isinstance(tier.get("type"), str):
            raise options.fail("secondary_tiers", "tables, each with a type (fs, obj, p2p ...)", got=tier)
        reader = OptionReader(f"{options.section}.secondary_tiers[{index}]", tier)
        entry = _entry(reader, context)
        if entry["type"] == "obj" and "module_path" not in entry:
            entry["store_config"] = _store(reader, context, found)
        elif entry["type"] == "p2p" and "port" not in entry:
            entry["port"] = context.port(f"p2p-{index}")
            found.notes.append("the p2p tier got a free port of this machine (vLLM's default, 5710, is one for all)")
        if entry["type"] in NIXL_TYPES:
            _nixl(found, context)
        found.entries.append(entry)
    return found


def _entry(reader: OptionReader, context: LaunchContext) -> dict[str, Any]:
    """Check one tier's type, keys, values and versions."""
    data = curated()
    known, name = data["tiers"], str(reader.options["type"])
    tier: Mapping[str, Any] = known.get(name, {})
    if name not in known:
        if reader.has("module_path"):
            _check_version(reader, "module_path", data["tier_keys"]["module_path"].get("since"), context)
            return dict(reader.options)  # the user's own class: its keys are its own
        new = data["tier_renames"].get(name)
        hint = f" (did you mean {new!r}?)" if new else did_you_mean(name, known)
        raise reader.fail(
            "type", f"one of {', '.join(sorted(known))}, or a class of yours with module_path", got=name, hint=hint
        )
    _check_version(reader, "type", tier.get("since"), context)
    if tier.get("keys") and (tier["closed"] or name == "p2p"):
        # vLLM swallows what it does not know in a p2p tier; a misspelt key would change nothing, in silence.
        reader.only(tier["keys"])
    for key in tier["required"]:
        if not reader.has(key):
            raise reader.fail(key, f"a value: a tier of type {name} needs it")
    kinds = {**{key: entry["type"] for key, entry in data["tier_keys"].items()}, **tier.get("types", {})}
    since = {key: entry.get("since") for key, entry in data["tier_keys"].items()} | tier.get("since_keys", {})
    for key in reader.options:
        _check_value(reader, key, kinds.get(key, "any"))
        _check_version(reader, key, since.get(key), context)
    return dict(reader.options)


def _check_value(reader: OptionReader, key: str, kind: str) -> None:
    if kind == "int":
        reader.integer(key, at_least=1)
    elif kind == "float":
        reader.number(key, above=0)
    elif kind == "bool":
        reader.boolean(key)
    elif kind == "dict":
        reader.mapping(key)
    elif kind == "list" and not isinstance(reader.options[key], list | tuple):
        raise reader.fail(key, "a list", got=reader.options[key])
    elif kind == "str" and not (key == "prefix" and reader.options[key] == ""):
        reader.text(key)


def _check_version(reader: OptionReader, key: str, since: str | None, context: LaunchContext) -> None:
    """Refuse what the server's vLLM, where its version is known, does not know yet."""
    if context.lacks(since):
        raise reader.fail(key, f"vLLM {since} or later: this server is {context.server_version}")


def _store(reader: OptionReader, context: LaunchContext, found: Tiers) -> dict[str, Any]:
    """Check ``store_config``, and move its keys into the environment."""
    table = reader.mapping("store_config")
    store = OptionReader(f"{reader.section}.store_config", table)
    data = curated()["tiers"]["obj"]["store_config"]
    store.only(data["keys"])
    for key in data["required"]:
        if not store.has(key):
            raise store.fail(key, "a value: an object store needs it")
    for key in table:
        if table[key] != "":  # empty is vLLM's own default: the SDK looks elsewhere
            store.text(key)
    scheme = table.get("scheme") or "http"
    if scheme not in ("http", "https"):
        raise store.fail("scheme", "'http' or 'https'", got=scheme)
    if table.get("ca_bundle") and scheme != "https":
        raise store.fail("ca_bundle", "scheme = 'https' beside it: over plain http nothing is verified")
    keys = {key: str(table[key]) for key in _KEY_VARIABLES if table.get(key)}
    if bool(table.get("access_key")) != bool(table.get("secret_key")) or (keys and "access_key" not in keys):
        raise store.fail(
            "secret_key" if table.get("access_key") else "access_key",
            "access_key and secret_key together, or neither: then the SDK looks in the environment, a credential file "
            "or a role",
        )
    if keys:
        _hand_over(store, keys, context, found)
    made = {key: value for key, value in table.items() if key not in _KEY_VARIABLES}
    if scheme == "https" and not table.get("ca_bundle"):
        _trust(made, context, found)
    return made


def _trust(store: dict[str, Any], context: LaunchContext, found: Tiers) -> None:
    """Name a CA bundle: nixl's plugin knows one path, which not every distribution has, and reads no variable."""
    asked = context.env.get("AWS_CA_BUNDLE")
    bundle = asked or (None if NIXL_BUNDLE.exists() else next((str(p) for p in SYSTEM_BUNDLES if p.exists()), None))
    if bundle is None:
        return
    store["ca_bundle"] = bundle
    why = "AWS_CA_BUNDLE names it, which nixl does not read" if asked else f"nixl looks in {NIXL_BUNDLE} only"
    found.notes.append(f"ca_bundle = {bundle!r} was added to store_config: {why}")


def _hand_over(store: OptionReader, keys: Mapping[str, str], context: LaunchContext, found: Tiers) -> None:
    variables = {_KEY_VARIABLES[key]: value for key, value in keys.items()}
    theirs = {name: context.env[name] for name in variables if name in context.env}
    earlier = {name: found.env[name] for name in _KEY_VARIABLES.values() if name in found.env}
    if theirs and theirs != variables:
        raise store.fail("access_key", f"keys here or in the environment ({', '.join(theirs)}), not both")
    if earlier and earlier != variables:
        raise store.fail(
            "access_key",
            "the same keys for every object tier of a server: they are handed over in its environment, because vLLM "
            "prints its configuration (kind 'raw' passes anything, and shows it in the server's log)",
        )
    found.env |= variables
    found.env.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    note = "the object store's keys are in the server's environment (AWS_*): vLLM would print them in its log"
    if note not in found.notes:
        found.notes.append(note)


def _nixl(found: Tiers, context: LaunchContext) -> None:
    found.packages = ("nixl",)
    if TELEMETRY in context.env or TELEMETRY in found.env:
        return
    found.env[TELEMETRY] = "y"
    found.notes.append(
        f"{TELEMETRY}=y was set: without it vLLM with nixl 1.5 dies at the first finished transfer (a value of your "
        "own in env is kept)"
    )
