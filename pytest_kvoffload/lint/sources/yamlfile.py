"""YAML files: parse once, then hand each document to the reader of its dialect."""

from __future__ import annotations

import re

from pytest_kvoffload.lint.model import Config
from pytest_kvoffload.lint.sources.collect import Collector
from pytest_kvoffload.lint.sources.configs import duplicate_message
from pytest_kvoffload.lint.sources.formats import looks_like_lmcache, looks_like_vllm_config
from pytest_kvoffload.lint.sources.template import blank_actions, is_template
from pytest_kvoffload.lint.sources.text import Mapped
from pytest_kvoffload.lint.sources.tree import from_yaml
from pytest_kvoffload.lint.sources.yamltree import YamlResult, YNode, read_yaml


def read_yaml_text(out: Collector, text: Mapped) -> None:
    """Read a YAML text of any dialect (a whole file, or one inside another text)."""
    if out.helm and is_template(text.text):
        from pytest_kvoffload.lint.sources.helm_render import rendered

        text = rendered(out, text) or text
    templated = is_template(text.text)
    result = read_yaml(blank_actions(text) if templated else text)
    if templated:
        _note_templates(out, text)
    else:
        for first, later in result.duplicates:
            out.add_problem(later.at, duplicate_message(out, first.scalar, first.at))
    if result.error is not None:
        where, why = result.error
        out.add_unresolved(where, f"the YAML could not be read to its end: {why}")
    read_documents(out, result, text)


def _note_templates(out: Collector, text: Mapped) -> None:
    match = re.search(r"(?<!\$)\{\{|\{%", text.text)
    if match:
        out.add_unresolved(text.offset(match.start()), "a template: its values are only known when it is rendered")


def read_documents(out: Collector, result: YamlResult, text: Mapped) -> None:
    """Dispatch the parsed documents."""
    from pytest_kvoffload.lint.sources import compose, helm, kubernetes, kustomize, ray, workflow

    objects: list[YNode] = []
    for document in result.documents:
        out.spend(10)
        if document.kind == "seq":
            if not kustomize.read_json6902(out, document):
                workflow.read_steps(out, document)
            continue
        if document.kind != "map":
            continue
        if document.get("servingEngineSpec") is not None:
            _named(out, "helm")
            helm.read_values(out, document)
        elif document.string("kind") == "VLLMRuntime":
            _named(out, "helm")
            helm.read_runtime(out, document)
        elif _is_workflow(document):
            _named(out, "workflow")
            workflow.read_workflow(out, document)
        elif document.get("runs", "steps") is not None:
            _named(out, "workflow")
            workflow.read_action(out, document)
        elif document.get("services") is not None and document.get("apiVersion") is None:
            _named(out, "compose")
            compose.read_compose(out, document)
        elif kustomize.is_kustomization(document):
            _named(out, "kubernetes")
            kustomize.read_kustomization(out, document)
        elif document.get("apiVersion") is not None or document.get("kind") is not None:
            _named(out, "kubernetes")
            objects.append(document)
        elif document.get("applications") is not None:
            _named(out, "ray")
            ray.read_serve_config(out, document)
        elif not _plain_config(out, document, text):
            _named(out, "helm")
            helm.read_other_values(out, document)
    if objects:
        kubernetes.read_objects(out, objects)


def _is_workflow(document: YNode) -> bool:
    """``on`` is the boolean true to YAML 1.1, but its text stays."""
    return document.get("jobs") is not None and any(document.get(k) is not None for k in ("on", "name", "permissions"))


def _named(out: Collector, reader: str) -> None:
    if out.reader == "yaml":
        out.reader = reader


def _plain_config(out: Collector, document: YNode, text: Mapped) -> bool:
    """LMCache's own YAML, or the file behind ``vllm serve --config``."""
    from pytest_kvoffload.lint.sources.vllm_yaml import vllm_config_launch

    keys = "".join(f"{key.scalar}:\n" for key, value in document.members())
    name = out.source.path.replace("\\", "/").rsplit("/", 1)[-1].lower()
    lmcache = looks_like_lmcache(keys)
    if lmcache or ("lmcache" in name and not looks_like_vllm_config(keys) and _flat(document)):
        _named(out, "lmcache-yaml")
        node = from_yaml(out.source, document)
        out.loose_configs.append(Config(kind="lmcache-yaml", node=node, location=node.location, text=text.text))
        return True
    if looks_like_vllm_config(keys) and document.get("args") is None:
        _named(out, "vllm-config-yaml")
        vllm_config_launch(out, document, text)
        return True
    return False


def _flat(document: YNode) -> bool:
    return sum(value.kind == "scalar" for _, value in document.members()) * 2 >= len(document.pairs)
