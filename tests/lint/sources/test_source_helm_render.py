"""Templates rendered by helm (a stand-in program here: what counts is when it runs and where the lines lead)."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from source_samples import flags, only

from pytest_kvoffload.lint.sources import read

TEMPLATE = """apiVersion: v1
kind: Pod
spec:
  containers:
    - name: vllm
      image: {{ .Values.image }}
      args:
        - --kv-offloading-size
        - {{ .Values.size | quote }}
"""


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    (tmp_path / "Chart.yaml").write_text("name: c\n")
    templates = tmp_path / "templates"
    templates.mkdir()
    (templates / "pod.yaml").write_text(TEMPLATE)
    return templates / "pod.yaml"


def stand_in(directory: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    program = directory / "helm"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(directory), prepend=":")


def test_rendered_values_are_known(chart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = TEMPLATE.replace("{{ .Values.image }}", "vllm/vllm-openai:v0.28.0").replace(
        "{{ .Values.size | quote }}", '"8"'
    )
    (tmp_path / "out").write_text(output)
    stand_in(tmp_path, monkeypatch, f"cat {tmp_path / 'out'}")
    launch = only(read(str(chart), TEMPLATE, helm=True))
    assert flags(launch) == {"--kv-offloading-size": "8"}
    assert launch.flags[0].location.line == 8


def test_nothing_runs_unless_asked(chart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, f"touch {tmp_path / 'ran'}")
    read(str(chart), TEMPLATE)
    assert not (tmp_path / "ran").exists()


def test_a_failure_is_noted_and_the_template_is_read(
    chart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, "echo 'Error: no such value' >&2; exit 1")
    found = read(str(chart), TEMPLATE, helm=True)
    assert "helm could not render the template: Error: no such value" in [u.reason for u in found.unresolved]
    size = only(found).flag("--kv-offloading-size")
    assert size is not None
    assert size.value is not None
    assert size.value.certainty == "unresolved"
