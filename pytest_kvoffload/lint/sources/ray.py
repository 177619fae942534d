"""Ray Serve configuration: ``applications[].args`` with ``llm_configs``, ``engine_kwargs`` and ``runtime_env``."""

from __future__ import annotations

from pytest_kvoffload.lint.model import Config, EnvVar, Flag, Launch
from pytest_kvoffload.lint.sources.collect import Collector, comments_near, file_words
from pytest_kvoffload.lint.sources.tree import from_yaml
from pytest_kvoffload.lint.sources.yamltree import YNode
from pytest_kvoffload.lint.sources.yamlwords import env_vars, environment

_ENGINE = ("engine_kwargs", "engine_args", "vllm_engine_kwargs")


def read_serve_config(out: Collector, document: YNode) -> None:
    """Read every mapping that holds engine keyword arguments."""
    _walk(out, document, [], 0)


def _walk(out: Collector, node: YNode, ancestors: list[YNode], depth: int) -> None:
    out.spend()
    if depth > 40 or node.kind == "scalar":
        return
    if node.kind == "seq":
        for item in node.items:
            _walk(out, item, ancestors, depth + 1)
        return
    for wanted in _ENGINE:
        engine = node.get(wanted)
        if engine is not None and engine.kind == "map":
            _launch(out, engine, [*ancestors, node])
    for key, value in node.members():
        if key.scalar not in _ENGINE:
            _walk(out, value, [*ancestors, node], depth + 1)


def _launch(out: Collector, engine: YNode, ancestors: list[YNode]) -> None:
    flags: list[Flag] = []
    configs: list[Config] = []
    for key, value in engine.members():
        name = "--" + key.scalar.replace("_", "-")
        location = out.location(key.at)
        if key.scalar in ("kv_transfer_config", "kv_events_config"):
            tree = from_yaml(out.source, value)
            configs.append(Config(kind=key.scalar.replace("_", "-"), node=tree, location=tree.location))  # type: ignore[arg-type]
            flags.append(Flag(name=name, location=location))
        elif value.kind == "scalar":
            text = value.scalar.lower()
            if value.tag.endswith(":bool"):
                flags.append(Flag(name=name if text == "true" else "--no-" + name[2:], location=location))
            elif not value.is_null:
                flags.append(Flag(name=name, location=location, value=out.value(value.text, quoted=value.quoted)))
    env: list[EnvVar] = []
    model = None
    for one in ancestors:
        block = one.get("runtime_env", "env_vars") or one.get("ray_actor_options", "runtime_env", "env_vars")
        if block is not None:
            entries, _ = environment(out, block, "runtime_env")
            env.extend(env_vars(out, entries))
        found = one.get("model_loading_config", "model_source") or one.get("model_loading_config", "model_id")
        model = found if found is not None and found.kind == "scalar" else model
    first = out.location(engine.at).line
    last = out.location(engine.end).line
    out.add_launch(
        Launch(
            product="vllm",
            location=out.location(engine.at),
            source="ray",
            flags=tuple(flags),
            env=tuple(env),
            configs=tuple(configs),
            model=out.value(model.text) if model is not None else None,
            words=tuple(dict.fromkeys(file_words(out) + comments_near(out, first, last))),
            env_complete=False,
        )
    )
