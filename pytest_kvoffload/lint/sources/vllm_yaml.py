"""The file behind ``vllm serve --config FILE``: a mapping of flag names to values."""

from __future__ import annotations

from pytest_kvoffload.lint.model import Config, Flag, Launch, Value
from pytest_kvoffload.lint.sources.collect import Collector, comments_near, file_words
from pytest_kvoffload.lint.sources.text import Mapped
from pytest_kvoffload.lint.sources.tree import from_yaml
from pytest_kvoffload.lint.sources.yamltree import YNode


def vllm_config_launch(out: Collector, document: YNode, text: Mapped) -> None:
    """Make a launch of the file: each key is the flag that vLLM makes of it (argparse_utils.load_config_file).

    The launch is not complete, since the command line that names the file may add flags.
    """
    node = from_yaml(out.source, document)
    configs = [Config(kind="vllm-config-yaml", node=node, location=node.location, text=text.text)]
    flags: list[Flag] = []
    model: Value | None = None
    for key, value in document.members():
        name = "--" + key.scalar
        location = out.location(key.at)
        normal = key.scalar.replace("_", "-")
        if normal in ("kv-transfer-config", "kv-events-config") and value.kind == "map":
            kind = normal
            tree = from_yaml(out.source, value)
            configs.append(Config(kind=kind, node=tree, location=tree.location))  # type: ignore[arg-type]
            flags.append(Flag(name=name, location=location))
            continue
        if value.kind == "scalar":
            if normal in ("kv-transfer-config", "kv-events-config") and value.scalar.lstrip().startswith("{"):
                from pytest_kvoffload.lint.sources.configs import json_config

                configs.append(json_config(out, normal, value.text))
            if value.tag.endswith(":bool") and value.scalar.lower() in ("true", "yes", "on"):
                flags.append(Flag(name=name, location=location))
                continue
            if value.tag.endswith(":bool"):
                # vLLM leaves out a false flag; what remains is seen in the tree of the file.
                continue
            content = out.value(value.text, quoted=value.quoted)
            flags.append(Flag(name=name, location=location, value=content))
            if normal in ("model", "model-tag"):
                model = content
    last = out.location(document.end).line
    out.add_launch(
        Launch(
            product="vllm",
            location=out.location(document.at),
            source="vllm-config-yaml",
            flags=tuple(flags),
            configs=tuple(configs),
            model=model,
            words=tuple(dict.fromkeys(file_words(out) + comments_near(out, 1, min(last, 60)))),
            complete=False,
            env_complete=False,
        )
    )
