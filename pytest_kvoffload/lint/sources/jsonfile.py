"""JSON files: a transfer configuration of its own, or (JSON is YAML) any of the YAML dialects."""

from __future__ import annotations

from pytest_kvoffload.lint.sources.collect import Collector
from pytest_kvoffload.lint.sources.configs import json_config
from pytest_kvoffload.lint.sources.text import Mapped
from pytest_kvoffload.lint.sources.yamlfile import read_documents
from pytest_kvoffload.lint.sources.yamltree import read_yaml


def read_json(out: Collector, text: Mapped) -> None:
    """Read one JSON file."""
    result = read_yaml(text.replaced(text.text.replace("\t", " ")))
    document = result.documents[0] if result.documents else None
    if document is not None and document.kind == "map" and document.get("kv_connector") is not None:
        out.loose_configs.append(json_config(out, "kv-transfer-config", text))
        return
    if document is not None:
        read_documents(out, result, text)
