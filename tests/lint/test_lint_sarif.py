"""SARIF 2.1.0 for code scanning: required fields, all rules, relative paths, fingerprints that survive edits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_kvoffload.lint.registry import entries
from pytest_kvoffload.lint.run import Options, Report, lint_document
from pytest_kvoffload.lint.sources import read
from pytest_kvoffload.output.lint_sarif import render

TEXT = "vllm serve m --kv-offloading-backend native\n"

LOCATION = {
    "type": "object",
    "required": ["physicalLocation"],
    "properties": {
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation", "region"],
            "properties": {
                "artifactLocation": {
                    "type": "object",
                    "required": ["uri"],
                    "properties": {"uri": {"type": "string", "not": {"pattern": "^/|\\\\|^\\.\\./"}}},
                },
                "region": {
                    "type": "object",
                    "required": ["startLine"],
                    "properties": {
                        "startLine": {"type": "integer", "minimum": 1},
                        "startColumn": {"type": "integer", "minimum": 1},
                    },
                },
            },
        }
    },
}
TEXT_ONLY = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
REQUIRED = {
    # What the SARIF 2.1.0 schema and GitHub's "SARIF support for code scanning" page require of the parts used here.
    "type": "object",
    "required": ["$schema", "version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "$schema": {"type": "string", "pattern": "sarif.*2\\.1\\.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name", "rules"],
                                "properties": {
                                    "semanticVersion": {"type": "string", "pattern": "^\\d+\\.\\d+\\.\\d+$"},
                                    "informationUri": {"type": "string", "format": "uri"},
                                    "rules": {
                                        "type": "array",
                                        "items": {
                                            "type": "object",
                                            "required": ["id", "shortDescription", "fullDescription", "help"],
                                            "properties": {
                                                "id": {"type": "string"},
                                                "name": {
                                                    "type": "string",
                                                    "maxLength": 255,
                                                    "pattern": "^[A-Za-z0-9]+$",
                                                },
                                                "shortDescription": {
                                                    "type": "object",
                                                    "required": ["text"],
                                                    "properties": {"text": {"type": "string", "maxLength": 1024}},
                                                },
                                                "fullDescription": {
                                                    "type": "object",
                                                    "required": ["text"],
                                                    "properties": {"text": {"type": "string", "maxLength": 1024}},
                                                },
                                                "help": TEXT_ONLY,
                                                "defaultConfiguration": {
                                                    "type": "object",
                                                    "properties": {
                                                        "level": {"enum": ["none", "note", "warning", "error"]}
                                                    },
                                                },
                                            },
                                        },
                                    },
                                },
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["ruleId", "ruleIndex", "level", "message", "locations", "partialFingerprints"],
                            "properties": {
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": TEXT_ONLY,
                                "locations": {"type": "array", "minItems": 1, "maxItems": 1, "items": LOCATION},
                                "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
                            },
                        },
                    },
                    "invocations": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["executionSuccessful"],
                            "properties": {
                                "toolExecutionNotifications": {
                                    "type": "array",
                                    "items": {"type": "object", "required": ["message"]},
                                }
                            },
                        },
                    },
                },
            },
        },
    },
}


def sarif(path: str, text: str, **options: Any) -> dict[str, Any]:
    """Render the findings of one text."""
    result = lint_document(read(path, text), Options(**options))
    data: dict[str, Any] = json.loads(render(Report(files=(result,), seen=1)))
    return data


def fingerprints(data: dict[str, Any]) -> list[str]:
    """Return the fingerprints of all results."""
    return [next(iter(r["partialFingerprints"].values())) for r in data["runs"][0]["results"]]


@pytest.mark.parametrize(
    "text", ["echo hello\n", TEXT, TEXT * 3, 'exec vllm serve "$@" --kv-transfer-config "$(cat x)"\n']
)
def test_required_fields(text: str) -> None:
    jsonschema.validate(sarif("dir with blank/serve.sh", text), REQUIRED)


def test_all_rules_are_listed_and_indexed() -> None:
    run = sarif("serve.sh", TEXT)["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(entries())
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]


def test_paths_are_relative_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("a b/serve.sh", str(tmp_path / "a b/serve.sh")):
        result = sarif(path, TEXT)["runs"][0]["results"][0]
        where = result["locations"][0]["physicalLocation"]["artifactLocation"]
        assert where == {"uri": "a%20b/serve.sh", "uriBaseId": "%SRCROOT%"}


def test_fingerprints_survive_other_edits_and_tell_equal_lines_apart() -> None:
    before = fingerprints(sarif("serve.sh", TEXT))
    moved = fingerprints(sarif("serve.sh", "#!/bin/bash\n\nset -e\n" + TEXT.replace("vllm serve", "  vllm  serve")))
    assert before == moved
    twice = fingerprints(sarif("serve.sh", TEXT + TEXT))
    assert len(set(twice)) == 2
    assert before[0] in twice
    assert before != fingerprints(sarif("serve.sh", TEXT.replace(" m ", " other ")))
