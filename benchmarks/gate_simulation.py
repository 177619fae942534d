"""Measure the error rates of the gate's tail test beside those of the tests it replaces.

    python benchmarks/gate_simulation.py [--runs 2000] [--jobs 2] [--seed 0] [--write docs/gate-error-rates.md]
                                         [--cells DIR]

Every cell is one family of ``gate_families.py``, one change and one n; every test sees the same requests. Prints the
tables, or replaces what stands between the markers of the document. All numbers follow from the seed. With ``--cells``
a study that was interrupted goes on where it stopped; cells of another seed, number of runs or source are not used.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gate_families import BOOT_SD, Family, families, true_ratio

from pytest_kvoffload import stats

SIZES = (200, 300, 500, 1000, 2000)
MARGIN, ALPHA, QUANTILE = 0.10, 0.01, 0.99
PEERS = ("fixed 10 %", "Welch 3", "Welch 5", "Mann-Whitney", "exceedance")
START, END = "<!-- generated: gate_simulation -->", "<!-- end of generated -->"
CHUNK = 250
"""Experiments drawn at once: bounds the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a family, a change and an n gave: shares of the experiments."""

    family: str
    factor: float
    n: int
    runs: int
    worse: float
    not_worse: float
    covered: float
    """Share of the intervals that hold the true ratio."""
    ratios: tuple[float, ...]
    """The ratio that each experiment printed."""
    peers: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Early:
    """What looking early gave."""

    looks: tuple[int, ...]
    factor: float
    runs: int
    worse: float
    worse_once: float
    """The same with one look at the end."""
    mean_n: float


def peers(reference: NDArray[np.float64], candidate: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return which of the peers' tests block, one row an experiment, one column a test of ``PEERS``."""
    n = reference.shape[1]
    blocked = [np.asarray(_quantiles(candidate) > (1.0 + MARGIN) * _quantiles(reference))]
    for count in (3, 5):
        size = n // count
        parts_r, parts_c = (
            np.log(_quantiles(arm[:, : size * count].reshape(-1, count, size))) for arm in (reference, candidate)
        )
        with warnings.catch_warnings():
            # A coarse clock makes runs of equal p99, which scipy warns of.
            warnings.simplefilter("ignore", RuntimeWarning)
            welch = scipy_stats.ttest_ind(
                parts_c - np.log1p(MARGIN), parts_r, axis=1, equal_var=False, alternative="greater"
            )
        blocked.append(np.asarray(welch.pvalue <= ALPHA))
    rank_sum = scipy_stats.mannwhitneyu(candidate, reference, axis=1, alternative="greater", method="asymptotic")
    blocked.append(np.asarray(rank_sum.pvalue <= ALPHA))
    # Exceedances of the pooled p95 after the margin is taken off: Fisher's exact test on the counts.
    shifted = candidate / (1.0 + MARGIN)
    edge = np.quantile(np.concatenate([reference, shifted], axis=1), 0.95, axis=1, keepdims=True)
    above_r, above_c = (reference > edge).sum(axis=1), (shifted > edge).sum(axis=1)
    blocked.append(scipy_stats.hypergeom.sf(above_c - 1, 2 * n, above_r + above_c, n) <= ALPHA)
    return np.stack(blocked, axis=1).astype(np.float64)


def simulate(family: Family, factor: float, n: int, runs: int, seed: int, truth: float) -> Cell:
    """Run one cell."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{family.name}/{factor}/{n}".encode())])
    labels = family.labels(n)
    worse = not_worse = covered = 0
    ratios: list[float] = []
    by_peers = np.zeros(len(PEERS))
    for start in range(0, runs, CHUNK):
        reference, candidate = family.draw(rng, min(CHUNK, runs - start), n, factor)
        by_peers += peers(reference, candidate).sum(axis=0)
        for row_r, row_c in zip(reference, candidate, strict=True):
            result = stats.tail_regression(row_r, row_c, quantile=QUANTILE, margin=MARGIN, alpha=ALPHA, boots=labels)
            worse += result.decision == "worse"
            not_worse += result.decision == "not_worse"
            covered += result.ratio_low <= truth <= result.ratio_high
            ratios.append(result.ratio)
    return Cell(
        family=family.name,
        factor=factor,
        n=n,
        runs=runs,
        worse=worse / runs,
        not_worse=not_worse / runs,
        covered=covered / runs,
        ratios=tuple(ratios),
        peers=tuple(by_peers / runs),
    )


def simulate_early(family: Family, looks: tuple[int, ...], factor: float, runs: int, seed: int) -> Early:
    """Run the sequential plan on one family and change."""
    rng = np.random.default_rng([seed, zlib.crc32(f"early/{looks}/{factor}".encode())])
    gate = stats.SequentialGate(looks=looks, alpha=ALPHA)
    worse = once = reached = 0
    for start in range(0, runs, CHUNK):
        reference, candidate = family.draw(rng, min(CHUNK, runs - start), looks[-1], factor)
        for row_r, row_c in zip(reference, candidate, strict=True):
            for n in looks:
                look = gate.look(row_r[:n], row_c[:n], quantile=QUANTILE, margin=MARGIN)
                if look.stop:
                    break
            worse += look.result.decision == "worse"
            reached += look.result.n
            once += stats.tail_regression(row_r, row_c, margin=MARGIN, alpha=ALPHA).decision == "worse"
    return Early(
        looks=looks, factor=factor, runs=runs, worse=worse / runs, worse_once=once / runs, mean_n=reached / runs
    )


def study(
    runs: int, jobs: int, seed: int, sizes: Sequence[int], kept: Path | None = None
) -> tuple[list[Cell], dict[tuple[str, float], float], list[Early]]:
    """Run all cells and the looks; also return the true ratio of the quantiles of each family and change."""
    known = families()
    truths = {(family.name, factor): true_ratio(family, factor) for family in known for factor in family.factors}
    tasks = [(place, factor, n) for place, family in enumerate(known) for factor in family.factors for n in sizes]
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        futures = [
            pool.submit(_task, place, factor, n, runs, seed, truths[known[place].name, factor], kept)
            for place, factor, n in tasks
        ]
        looked = [
            pool.submit(_early_task, looks, factor, runs, seed, kept)
            for looks in ((100, 150, 200, 300), (250, 500, 1000))
            for factor in (1.0, 1.1, 1.5, 2.0)
        ]
        return [future.result() for future in futures], truths, [future.result() for future in looked]


def known_null(cell: Cell, cells: Iterable[Cell]) -> float | None:
    """Return how often the cell's ratio lies beyond what it exceeds in 1 % at the margin, ``None`` where nobody asks.

    The power of the same ratio for someone who knows its distribution at the margin instead of estimating its scatter.
    """
    if cell.factor <= 1.0 + MARGIN:
        return None
    for other in cells:
        if (other.family, other.factor, other.n) == (cell.family, 1.0 + MARGIN, cell.n):
            return float((np.array(cell.ratios) > np.quantile(other.ratios, 1.0 - ALPHA)).mean())
    return None


def render(cells: Iterable[Cell], truths: dict[tuple[str, float], float], early: Iterable[Early]) -> str:
    """Render all tables as Markdown."""
    cells = list(cells)
    general = {family.name for family in families() if len(family.factors) > 1}
    groups = [
        ("No change (every block is false)", [c for c in cells if c.family in general and c.factor == 1.0]),
        ("The tail exactly at the margin, 1.1x (every block is false)", [c for c in cells if c.factor == 1.1]),
        ("The tail 1.25x slower", [c for c in cells if c.factor == 1.25]),
        ("The tail 1.5x slower", [c for c in cells if c.family in general and c.factor == 1.5]),
        ("Other changes", [c for c in cells if c.family not in general]),
    ]
    lines: list[str] = []
    for title, members in groups:
        known = [known_null(cell, cells) for cell in members]
        lines += [f"### {title}", "", *_table(members, truths, [share for share in known if share is not None]), ""]
    lines += ["### What boots allow, with requests without end", "", *_boots_table(), ""]
    lines += ["### Stopping early (shared component)", "", *_early_table(early), ""]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the study and print or write its tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000, help="experiments a cell (default 2000)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="requests per arm")
    parser.add_argument("--write", type=Path, help="document whose generated part is replaced")
    parser.add_argument(
        "--cells", type=Path, help="directory that keeps finished cells, to go on after an interruption"
    )
    args = parser.parse_args(argv)
    began = time.monotonic()
    cells, truths, early = study(args.runs, args.jobs, args.seed, args.sizes, args.cells)
    text = f"{args.runs} experiments a cell, seed {args.seed}.\n\n" + render(cells, truths, early)
    if args.write is None:
        print(text)
    else:
        document = args.write.read_text(encoding="utf-8")
        head, _, rest = document.partition(START)
        tail = rest.partition(END)[2]
        args.write.write_text(f"{head}{START}\n{text}{END}{tail}", encoding="utf-8")
    print(f"{len(cells)} cells in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


def _task(place: int, factor: float, n: int, runs: int, seed: int, truth: float, kept: Path | None) -> Cell:
    name = f"{place}-{factor}-{n}-{runs}-{seed}"
    return Cell(**_kept(kept, name, lambda: asdict(simulate(families()[place], factor, n, runs, seed, truth))))


def _early_task(looks: tuple[int, ...], factor: float, runs: int, seed: int, kept: Path | None) -> Early:
    shared = next(family for family in families() if family.name == "shared component")
    name = f"early-{looks[-1]}-{factor}-{runs}-{seed}"
    return Early(**_kept(kept, name, lambda: asdict(simulate_early(shared, looks, factor, runs, seed))))


def _kept(folder: Path | None, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what an earlier study left under the name, and compute and leave it otherwise."""
    if folder is None:
        return compute()
    file = folder / f"{name}-{_source()}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(compute()), encoding="utf-8")
        partial.replace(file)
    fields = json.loads(file.read_text(encoding="utf-8"))
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


def _source() -> str:
    """Return a checksum of what the numbers follow from."""
    folder = Path(stats.__file__).parent
    files = [*sorted(folder.glob("*.py")), Path(__file__), Path(__file__).with_name("gate_families.py")]
    return f"{zlib.crc32(b''.join(file.read_bytes() for file in files)):08x}"


def _quantiles(values: NDArray[np.float64]) -> NDArray[np.float64]:
    # The order statistic ceil(n q), as stats.quantile defines it.
    rank = math.ceil(values.shape[-1] * Fraction(repr(QUANTILE))) - 1
    return np.partition(values, rank, axis=-1)[..., rank]


def _table(cells: Sequence[Cell], truths: dict[tuple[str, float], float], known: Sequence[float]) -> list[str]:
    oracle = ["null known"] if known else []
    head = ["family", "true p99 ratio", "n", "**blocked**", *oracle, "not worse", "interval holds", *PEERS]
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join([" --- ", *["---:"] * (len(head) - 1)]) + "|"]
    for place, cell in enumerate(cells):
        shares = [*known[place : place + 1], cell.not_worse, cell.covered, *cell.peers]
        numbers = [f"**{cell.worse:.3f}**", *(f"{share:.3f}" for share in shares)]
        truth = f"{truths[cell.family, cell.factor]:.2f}"
        lines.append("| " + " | ".join([cell.family, truth, str(cell.n), *numbers]) + " |")
    return lines


def boots_power(boots: int, factor: float) -> tuple[float, float]:
    """Return the power that boots alone allow: when their deviation is known, and by Student's t when it is not.

    The arms' means over their boots differ by the log of the factor with a standard error of ``sd * sqrt(2 / boots)``;
    the gap to the margin in such errors is the noncentrality. Student's two-sample t has ``2 * boots - 2`` degrees of
    freedom, and none with one boot.
    """
    gap = math.log(factor / (1.0 + MARGIN)) / (BOOT_SD * math.sqrt(2.0 / boots))
    known = float(scipy_stats.norm.sf(scipy_stats.norm.isf(ALPHA) - gap))
    degrees = 2 * boots - 2
    return known, float(scipy_stats.nct.sf(scipy_stats.t.isf(ALPHA, degrees), degrees, gap)) if degrees else ALPHA


def _boots_table() -> list[str]:
    lines = [
        "| boots per arm | tail | blocked at best, 3 % known | blocked by Student's t, unknown |",
        "| --- | ---: | ---: | ---: |",
    ]
    for boots in (1, 2, 3, 5, 8):
        for factor in (1.25, 1.5):
            known, student = boots_power(boots, factor)
            lines.append(f"| {boots} | {factor:g}x | {known:.3f} | {student:.3f} |")
    return lines


def _early_table(rows: Iterable[Early]) -> list[str]:
    lines = [
        "| looks at n | tail | blocked | blocked by one look at the end | mean n reached |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        looks = ", ".join(map(str, row.looks))
        lines.append(f"| {looks} | {row.factor:g}x | {row.worse:.3f} | {row.worse_once:.3f} | {row.mean_n:.0f} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
