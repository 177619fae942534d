"""The gate's verdict for a terminal and for a pull request."""

from __future__ import annotations

from pytest_kvoffload.gate.verdict import VERDICT_SCHEMA_VERSION, Finding, Outcome, Verdict
from pytest_kvoffload.output.gate_plot import plot
from pytest_kvoffload.records import to_json

WORDS: dict[Outcome, str] = {"pass": "PASS", "fail": "FAIL", "inconclusive": "INCONCLUSIVE"}
MARKDOWN_LIMIT = 60_000
"""Characters; GitHub takes 65,536 in a comment."""


def text(verdict: Verdict) -> str:
    """Return the verdict as plain lines."""
    lines = [f"{WORDS[finding.outcome]:<13} {finding.name}: {finding.text}" for finding in verdict.findings]
    lines += [
        f"requests per arm {verdict.requests_per_arm}, boots per arm {verdict.boots_per_arm}",
        f"calibration: {verdict.calibration}",
        *verdict.notes,
        f"verdict: {WORDS[verdict.outcome]}",
    ]
    return "\n".join(lines)


def document(verdict: Verdict, *, command: str | None = None) -> bytes:
    """Return the verdict as JSON: schema, outcome and exit code first, then all that it rests on.

    ``command`` repeats the run, where it is known.
    """
    return to_json(
        {
            "kind": "kvoffload-verdict",
            "schema_version": VERDICT_SCHEMA_VERSION,
            "outcome": verdict.outcome,
            "exit_code": int(verdict.exit_code),
            **({"command": command} if command else {}),
            "verdict": verdict,
        },
        indent=1,
    )


def markdown(verdict: Verdict) -> str:
    """Return the verdict as Markdown, below GitHub's limit for a comment."""
    lines = [
        f"### KV offload gate: {WORDS[verdict.outcome]}",
        "",
        "| what | outcome | reference | candidate | ratio | n |",
        "|---|---|---:|---:|---:|---:|",
        *(_row(finding) for finding in verdict.findings),
        "",
        *(["```text", plot(verdict.spread), "```", ""] if verdict.spread is not None else []),
        "<details><summary>evidence</summary>",
        "",
        *(f"- **{_escape(finding.name)}**: {_escape(finding.text)}" for finding in verdict.findings),
        f"- requests per arm {verdict.requests_per_arm}, boots per arm {verdict.boots_per_arm}",
        f"- calibration: {_escape(verdict.calibration)}",
        *(f"- {_escape(note)}" for note in verdict.notes),
        "",
        "</details>",
        "",
    ]
    out = "\n".join(lines)
    return out if len(out) <= MARKDOWN_LIMIT else out[:MARKDOWN_LIMIT] + "\n\n(cut: too long for a comment)\n"


def _row(finding: Finding) -> str:
    tail = finding.tail
    cells = ["", _value(finding), "", ""]
    if tail is not None:
        cells = [
            f"{tail.reference_quantile * 1000:.4g} ms",
            f"{tail.candidate_quantile * 1000:.4g} ms",
            f"{tail.ratio:.3f} [{tail.ratio_low:.3f}, {tail.ratio_high:.3f}]",
            str(tail.n),
        ]
    return f"| {_escape(finding.name)} | {WORDS[finding.outcome]} | {' | '.join(cells)} |"


def _value(finding: Finding) -> str:
    if finding.value is None:
        return ""
    return f"{finding.value * 1000:.4g} ms" if finding.unit == "seconds" else f"{finding.value:.4g}"


def _escape(words: str) -> str:
    """Keep text from servers and configurations from being markup."""
    for character in ("\\", "`", "*", "_", "[", "]", "<", ">", "|", "#"):
        words = words.replace(character, f"\\{character}")
    return " ".join(words.split())
