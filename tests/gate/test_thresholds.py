"""Threshold expressions: what they mean, and how a wrong one is named."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kvoffload.errors import ConfigError
from pytest_kvoffload.gate.thresholds import (
    LATENCIES,
    PHASES,
    TIERS,
    Threshold,
    parse_threshold,
    parse_thresholds,
)
from pytest_kvoffload.metrics import meters


def fields(threshold: Threshold) -> tuple[object, ...]:
    return (
        threshold.phase,
        threshold.tier,
        threshold.metric,
        threshold.quantile,
        threshold.kind,
        threshold.against,
        threshold.comparator,
        threshold.bound,
        threshold.floor,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft_p99 < 1.5s", ("restored", None, "ttft", 0.99, "absolute", None, "<", 1.5, None)),
        ("ttft_p99<1.5s", ("restored", None, "ttft", 0.99, "absolute", None, "<", 1.5, None)),
        ("cold.e2e_p50 <= 1500 ms", ("cold", None, "e2e", 0.5, "absolute", None, "<=", 1.5, None)),
        ("ttft_p99.9 < 2s", ("restored", None, "ttft", 0.999, "absolute", None, "<", 2.0, None)),
        ("restored.hit_rate >= 0.6", ("restored", None, "hit_rate", None, "absolute", None, ">=", 0.6, None)),
        ("restored.host.hit_rate >= 60%", ("restored", "host", "hit_rate", None, "absolute", None, ">=", 0.6, None)),
        ("disk.hit_rate > 0", ("restored", "disk", "hit_rate", None, "absolute", None, ">", 0.0, None)),
        ("failed_requests <= 0", ("restored", None, "failed_requests", None, "absolute", None, "<=", 0.0, None)),
        (
            "ttft_p99 regression < 10%",
            ("restored", None, "ttft", 0.99, "regression", "reference", "<", 0.1, None),
        ),
        (
            "ttft_p99 regression < 10% or 20ms",
            ("restored", None, "ttft", 0.99, "regression", "reference", "<", 0.1, 0.02),
        ),
        (
            "resident.tpot_p95 regression over control <= 5% or 500us",
            ("resident", None, "tpot", 0.95, "regression", "control", "<=", 0.05, 0.0005),
        ),
        (
            "host.hit_rate regression < 5% or 0.02",
            ("restored", "host", "hit_rate", None, "regression", "reference", "<", 0.05, 0.02),
        ),
        (
            "ttft_p50 gain over control >= 30%",
            ("restored", None, "ttft", 0.5, "gain", "control", ">=", 0.3, None),
        ),
    ],
)
def test_what_expressions_mean(text: str, expected: tuple[object, ...]) -> None:
    threshold = parse_threshold(text)
    assert fields(threshold) == pytest.approx(expected)
    assert threshold.text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got nothing in ''; expected a metric (ttft, tpot, e2e, hit_rate, failed_requests, preemptions)"),
        (
            "tfft_p99 < 1s",
            "got 'tfft' in 'tfft_p99 < 1s'; expected a metric (ttft, tpot, e2e, hit_rate, failed_requests, "
            "preemptions) (did you mean 'ttft'?)",
        ),
        (
            "hitrate >= 0.5",
            "expected a metric (ttft, tpot, e2e, hit_rate, failed_requests, preemptions) (did you mean 'hit_rate'?)",
        ),
        (
            "restord.hit_rate >= 0.5",
            "got 'restord' in 'restord.hit_rate >= 0.5'; expected a phase (cold, resident, restored) or a tier "
            "(device, external, host, disk, p2p, lmcache_l1, lmcache_l2) (did you mean 'restored'?)",
        ),
        ("restored.hots.hit_rate >= 0.5", "(did you mean 'host'?)"),
        ("host.restored.hit_rate >= 0.5", "expected at most one phase and, after it, one tier"),
        ("cold.restored.hit_rate >= 0.5", "expected at most one phase and, after it, one tier"),
        ("host.ttft_p99 < 1s", "expected a tier before hit_rate only: ttft is not counted per tier"),
        ("ttft < 1s", "got 'ttft' in 'ttft < 1s'; expected a quantile with ttft, such as ttft_p99"),
        ("ttft_p100 < 1s", "expected a quantile between p0 and p100"),
        ("ttft_p999 < 1s", "expected a quantile between p0 and p100 (did you mean 'ttft_p99.9'?)"),
        ("hit_rate_p99 > 0.5", "expected hit_rate without a quantile: it is one number a run"),
        ("ttft_p99 < 1.5", "expected a duration with its unit (s, ms, us) (did you mean 1.5s or 1.5ms?)"),
        ("ttft_p99 < 10%", "got '10%' in 'ttft_p99 < 10%'; expected a duration with its unit (s, ms, us)"),
        ("ttft_p99 < 0s", "expected a duration above zero"),
        ("ttft_p99 > 1s", "expected <= or <: a threshold says what is good, and ttft is good when low"),
        ("ttft_p99 == 1s", "got '==' in 'ttft_p99 == 1s'; expected <= or <"),
        ("hit_rate < 0.5", "expected >= or >: a threshold says what is good, and hit_rate is good when high"),
        ("hit_rate >= 60", "expected a share between 0 and 1, such as 0.6 or 60%"),
        ("hit_rate >= 1.5", "expected a share between 0 and 1"),
        ("hit_rate >= 0.5s", "expected a share between 0 and 1"),
        ("failed_requests < 1.5", "expected a whole number"),
        ("failed_requests < many", "got 'many' in 'failed_requests < many'; expected a count, such as 0"),
        ("ttft_p99 regresion < 10%", "expected a comparison, regression or gain (did you mean 'regression'?)"),
        ("ttft_p99 regression < 10", "expected a share in percent, such as 10% (did you mean '10%'?)"),
        ("ttft_p99 regression < 20ms", "expected a share in percent, such as 10%"),
        ("ttft_p99 regression < 0%", "expected more than 0%"),
        ("ttft_p99 regression > 10%", "and a regression of ttft is good when low"),
        (
            "ttft_p99 regression < 10% orr 20ms",
            "got 'orr' in 'ttft_p99 regression < 10% orr 20ms'; expected or, or nothing more (did you mean 'or'?)",
        ),
        (
            "ttft_p99 regression < 10% or",
            "got nothing in 'ttft_p99 regression < 10% or'; expected a duration, such as 1.5s",
        ),
        (
            "ttft_p99 regression < 10% or 20",
            "expected a duration with its unit (s, ms, us) (did you mean 20s or 20ms?)",
        ),
        ("ttft_p99 regression < 10% or 20ms or 3ms", "got 'or' in"),
        ("hit_rate regression < 10% or 0", "expected a share between 0 and 1"),
        ("ttft_p99 regression ovr control < 10%", "expected over ARM, or a comparison (did you mean 'over'?)"),
        ("ttft_p50 gain >= 30%", "expected over ARM: a gain is over something, such as control"),
        ("ttft_p50 gain over >= 30%", "expected the name of an arm"),
        ("ttft_p50 gain over control < 30%", "and a gain of ttft is good when high"),
        ("ttft_p50 gain over control >= 100%", "expected more than 0% and less than 100%"),
        ("ttft_p50 gain over control >= 30% or 2ms", "got 'or' in"),
        ("ttft_p99 < 1s please", "got 'please' in 'ttft_p99 < 1s please'; expected nothing more"),
        ("ttft_p99 <", "got nothing in 'ttft_p99 <'; expected a duration, such as 1.5s or 20ms"),
        ("ttft_p99", "got nothing in 'ttft_p99'; expected a comparison (<, <=, >, >=)"),
        ("< 1s", "got '<' in '< 1s'; expected a metric"),
        ("ttft_p99 < 1.2.3s", "got '1.2.3s' in 'ttft_p99 < 1.2.3s'; expected a duration"),
        ("ttft_p99 < -1s", "got '-1s' in 'ttft_p99 < -1s'; expected a duration"),
    ],
)
def test_a_wrong_one_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        parse_threshold(text, source="kvoffload.toml")
    assert str(caught.value).startswith("kvoffload.toml: [gate] thresholds: got ")


def test_arms_are_checked_when_they_are_known() -> None:
    arms = ["control", "native"]
    assert parse_threshold("ttft_p50 gain over control >= 30%", arms=arms).against == "control"
    assert parse_threshold("ttft_p50 regression over reference < 5%", arms=arms).against == "reference"
    with pytest.raises(ConfigError, match=r"one of the arms control, native, reference \(did you mean 'control'\?\)"):
        parse_threshold("ttft_p50 gain over controll >= 30%", arms=arms)


def test_two_thresholds_of_the_same_thing_are_a_mistake() -> None:
    texts = ["ttft_p99 < 1s", "restored.ttft_p99 < 2s"]
    with pytest.raises(ConfigError, match=r"got 'ttft_p99 < 1s' and 'restored.ttft_p99 < 2s'; expected one absolute"):
        parse_thresholds(texts)
    assert (
        len(parse_thresholds(["ttft_p99 < 1s", "ttft_p95 < 1s", "ttft_p99 regression < 10%", "cold.ttft_p99 < 9s"]))
        == 4
    )


def test_holds() -> None:
    assert parse_threshold("ttft_p99 <= 1s").holds(1.0)
    assert not parse_threshold("ttft_p99 < 1s").holds(1.0)
    assert parse_threshold("hit_rate >= 0.5").holds(0.5)
    assert not parse_threshold("hit_rate > 0.5").holds(0.5)


def test_tiers_are_those_that_the_meters_know() -> None:
    known = {*meters.TIERS, *meters._LMCACHE_TIERS} - {"external_unspecified"}
    assert set(TIERS) == known


def _percent(value: float) -> str:
    return f"{value:g}%"


SUBJECTS = st.one_of(
    st.builds(
        "{}{}_p{:g}".format,
        st.sampled_from(["", *(f"{phase}." for phase in PHASES)]),
        st.sampled_from(LATENCIES),
        st.sampled_from([1, 50, 95, 99, 99.9, 99.99]),
    ),
    st.builds(
        "{}{}hit_rate".format,
        st.sampled_from(["", *(f"{phase}." for phase in PHASES)]),
        st.sampled_from(["", *(f"{tier}." for tier in TIERS)]),
    ),
)
SHARES = st.integers(1, 99).map(_percent)


@given(
    SUBJECTS,
    st.one_of(
        st.builds("regression < {}".format, SHARES),
        st.builds("gain over {} >= {}".format, st.sampled_from(["control", "lm-cache", "v0_27"]), SHARES),
    ),
)
def test_every_sentence_of_the_language_parses_to_itself(subject: str, rest: str) -> None:
    threshold = parse_threshold(f"{subject} {rest}")
    again = parse_threshold(f"{threshold.label} {rest}")
    assert fields(again) == fields(threshold)
    assert threshold.label.endswith(subject)


@given(st.text(alphabet="tfp95<>=%. orgainve_s1h", max_size=30))
def test_anything_else_is_a_config_error_and_nothing_worse(text: str) -> None:
    try:
        answer = parse_threshold(text).text
    except ConfigError as error:
        answer = str(error)
    assert text in answer or repr(text) in answer
