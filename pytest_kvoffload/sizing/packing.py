"""Groups of layers whose pages differ, packed side by side in each block (DeepSeek-V4's layout).

Source: ``v1/core/kv_cache_utils.py`` (0.32.0:1860-2010, ``_get_packed_kv_cache_groups``).
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_kvoffload.sizing.spec import STATE, UNIFORM, WINDOW, WINDOW_MLA, Group, LayerSpec, ceil_div, same_type


def packed_groups(specs: Sequence[LayerSpec]) -> tuple[Group, ...]:
    """Return the groups of a block-outermost layout with pages of several sizes."""
    buckets = _buckets(specs)
    by_page = [_by_page(specs, bucket) for bucket in buckets]
    balanced = [len({len(members) for members in pages.values()}) == 1 for pages in by_page]
    most = [max(len(members) for members in pages.values()) for pages in by_page]
    floor = max(
        (most[i] for i, pages in enumerate(by_page) if balanced[i] and len(pages) > 1),
        default=0,
    )
    counts = [most[i] for i in range(len(buckets)) if balanced[i]]
    repeats = approximate_gcd(counts, lower_bound=floor) if floor else None

    def groups_for(i: int) -> int:
        return ceil_div(most[i], repeats) if balanced[i] and repeats is not None else 1

    def is_state(i: int) -> bool:
        kind = specs[buckets[i][0]].kind
        return kind == STATE or (repeats is None and kind in (WINDOW, WINDOW_MLA))

    def widest(i: int, number: int) -> int:
        return sum(ceil_div(len(members), number) * page for page, members in by_page[i].items())

    anchor = max(widest(i, len(buckets[i]) if is_state(i) else groups_for(i)) for i in range(len(buckets)))
    groups: list[Group] = []
    for i, bucket in enumerate(buckets):
        number = groups_for(i)
        if is_state(i):
            fits = max(anchor // specs[bucket[0]].page_bytes, 1)
            number = max(number, ceil_div(len(bucket), fits))
        if number == 1:
            groups.append(_group(specs, bucket))
            continue
        pattern = list(zip(*by_page[i].values(), strict=False))
        groups += [_group(specs, [index for row in pattern[k::number] for index in row]) for k in range(number)]
    return tuple(groups)


def approximate_gcd(values: Sequence[int], *, lower_bound: int = 1) -> int:
    """Return the divisor of at least ``lower_bound`` that needs the least padding; of equals the larger."""
    low, high = max(1, lower_bound), max(values)
    if low > high:
        return low
    return min(range(low, high + 1), key=lambda d: (sum(-value % d for value in values), -d))


def _buckets(specs: Sequence[LayerSpec]) -> list[list[int]]:
    buckets: list[list[int]] = []
    for index, spec in enumerate(specs):
        for bucket in buckets:
            if same_type([*(specs[i] for i in bucket), spec]):
                bucket.append(index)
                break
        else:
            buckets.append([index])
    return buckets


def _by_page(specs: Sequence[LayerSpec], bucket: Sequence[int]) -> dict[int, list[int]]:
    pages: dict[int, list[int]] = {}
    for index in bucket:
        pages.setdefault(specs[index].page_bytes, []).append(index)
    return pages


def _group(specs: Sequence[LayerSpec], members: Sequence[int]) -> Group:
    chosen = tuple(specs[index] for index in members)
    return Group(kind=UNIFORM, block_size=chosen[0].block_size, layers=tuple(members), specs=chosen)
