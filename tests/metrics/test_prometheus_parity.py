"""The same numbers as a real Prometheus, over generated histograms."""

from __future__ import annotations

import math
import random
from pathlib import Path

from expositions import page, serving
from prometheus_server import need_prometheus, prometheus, query, scraped

from pytest_kvoffload.metrics.exposition import parse_exposition
from pytest_kvoffload.metrics.quantiles import bucket_quantile

HISTOGRAMS = 600
QUANTILES = (-0.5, 0.0, 0.001, 0.1, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0, 1.5)
TOLERANCE = 1e-9


def generated(count: int, seed: int) -> str:
    """Return an exposition of histograms, ordinary and broken ones, told apart by the label ``id``."""
    rng = random.Random(seed)
    lines = ["# TYPE generated histogram"]
    for number in range(count):
        kind = rng.choice(
            ["plain", "plain", "float", "empty", "negative", "falling", "noise", "no inf", "double", "inf only"]
        )
        bounds = sorted(
            {round(rng.uniform(-2 if kind == "negative" else 0.001, 20), 4) for _ in range(rng.randint(1, 14))}
        )
        value, rows = 0.0, []
        for bound in [*map(repr, bounds), "+Inf"]:
            step = 0.0 if kind == "empty" else rng.choice([0, 0, 1, rng.randint(0, 500)])
            value += step * (rng.random() if kind == "float" else 1)
            shown = value
            if kind == "falling" and rng.random() < 0.3:
                shown = value * rng.uniform(0.5, 1)
            elif kind == "noise" and step == 0:
                # Downwards only: Prometheus before 2.50 (Debian 12 has 2.42) takes a rise of 1e-13 for observations.
                shown = value * (1 - 1e-13)
            rows.append((bound, shown))
        if kind == "no inf":
            rows.pop()
        elif kind == "inf only":
            rows = rows[-1:]
        elif kind == "double":
            # 1.5 and 1.50 are two series with one bound.
            rows.insert(0, (f"{rows[0][0]}0" if rows[0][0] != "+Inf" else "Inf", rng.randint(0, 5)))
        lines += [f'generated_bucket{{id="{number}",le="{bound}"}} {shown!r}' for bound, shown in rows]
        lines += [f'generated_count{{id="{number}"}} {value!r}', f'generated_sum{{id="{number}"}} 1.0']
    # A page that ends inside a histogram without +Inf is one that was cut off.
    return "\n".join([*lines, "# TYPE last gauge", "last 1"]) + "\n"


def test_quantiles_equal_those_of_a_real_prometheus(tmp_path: Path) -> None:
    need_prometheus()
    text = generated(HISTOGRAMS, seed=7)
    buckets: dict[str, list[tuple[float, float]]] = {}
    for sample in parse_exposition(text.encode())[0]:
        if sample.name == "generated_bucket":
            buckets.setdefault(sample.labels["id"], []).append((float(sample.labels["le"]), sample.value))
    with serving({"/metrics": page(text)}) as target, prometheus(target, tmp_path) as url:
        at = scraped(url, "generated_count", series=HISTOGRAMS)
        theirs = {q: query(url, f"histogram_quantile({q}, generated_bucket)", at_seconds=at) for q in QUANTILES}
    compared = 0
    for q, answers in theirs.items():
        found = {answer["metric"]["id"]: float(answer["value"][1]) for answer in answers}
        assert set(found) == set(buckets)
        for number, expected in found.items():
            ours = bucket_quantile(q, buckets[number])
            same = (
                (math.isnan(expected) and math.isnan(ours))
                or ours == expected
                or abs(ours - expected) <= TOLERANCE * max(1.0, abs(expected))
            )
            assert same, f"q={q} histogram {number}: {ours} here, {expected} in Prometheus, of {buckets[number]}"
            compared += 1
    assert compared == HISTOGRAMS * len(QUANTILES)
    assert len({answer["value"][1] for answer in theirs[0.5]}) > HISTOGRAMS / 4
