"""Heads per rank, and vLLM's refusals when they do not divide."""

from __future__ import annotations

from pytest_kvoffload.catalog.architectures import Rule
from pytest_kvoffload.errors import SizingError
from pytest_kvoffload.sizing.view import ConfigView

KV_HEAD_KEYS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
"""In vLLM's order (transformers_utils/model_arch_config_convertor.py:150)."""


def check_query_heads(heads: int, tp: int) -> None:
    """Refuse as vLLM's model configuration does when the query heads do not divide.

    Raises:
        SizingError: in vLLM's words.
    """
    if heads % tp:
        raise SizingError(
            f"vLLM refuses this: Total number of attention heads ({heads}) must be divisible by "
            f"tensor parallel size ({tp})."
        )


def heads_per_rank(total: int, tp: int, *, where: str = "model code", replicate: bool = True) -> int:
    """Return the KV heads that one rank keeps: divided, or one replica each when there are fewer heads than ranks.

    Raises:
        SizingError: vLLM refuses, because heads and ranks do not divide either way.
    """
    if total >= tp:
        if total % tp:
            raise SizingError(
                f"vLLM refuses this: AssertionError, {total} KV heads cannot be divided over {tp} "
                f"tensor-parallel ranks ({where})"
            )
        return total // tp
    if not replicate:
        raise SizingError(
            f"vLLM refuses this: ZeroDivisionError, {total} KV heads on {tp} ranks leave 0 per rank, "
            "and this class does "
            f"not replicate them ({where})"
        )
    if tp % total:
        raise SizingError(
            f"vLLM refuses this: AssertionError, {total} KV heads cannot be replicated over {tp} "
            f"tensor-parallel ranks ({where})"
        )
    return 1


def divide(value: int, tp: int, what: str) -> int:
    """Return ``value / tp``.

    Raises:
        SizingError: vLLM refuses, because it does not divide.
    """
    if value % tp:
        raise SizingError(f"vLLM refuses this: AssertionError, {what} {value} is not divisible by {tp}")
    return value // tp


def query_heads(view: ConfigView) -> int:
    """Return the total of query heads."""
    return view.first_integer(("num_attention_heads", "n_heads", "decoder_attention_heads"), maximum=100_000)


def kv_heads(view: ConfigView, rule: Rule) -> int:
    """Return the total of KV heads, by the rule's way of reading it."""
    heads = query_heads(view)
    way = rule.kv_heads
    if way == "heads":
        return heads
    if way == "one":
        return 1
    if way == "falcon":
        if view.flag("new_decoder_architecture"):
            return view.integer("num_kv_heads", default=heads, maximum=100_000)
        return 1 if view.flag("multi_query") else heads
    if way == "dbrx":
        nested = view.mapping("attn_config").get("kv_n_heads", heads)
        if not isinstance(nested, int) or isinstance(nested, bool) or nested < 1:
            raise view.bad("attn_config.kv_n_heads", f"got {nested!r}; expected a whole number of 1 or more")
        return nested
    if "kv_heads_key" in rule.options:
        if not view.flag(str(rule.options["kv_heads_when"])):
            return heads
        return view.integer(str(rule.options["kv_heads_key"]), maximum=100_000)
    for key in KV_HEAD_KEYS:
        if view.written(key) is not None:
            return view.integer(key, maximum=100_000)
    if view.has("multi_query"):  # GPT-BigCode: one KV head for all
        return 1 if view.flag("multi_query") else heads
    # Absent: the class's own default where it is a number, else as many as query heads.
    return view.integer("num_key_value_heads", default=heads, maximum=100_000)


def head_size(view: ConfigView, rule: Rule) -> int:
    """Return the size of one head of K, by the rule's way of reading it."""
    if rule.head_dim == "qk":
        return view.integer("qk_nope_head_dim") + view.integer("qk_rope_head_dim")
    if rule.head_dim == "explicit" and (explicit := view.optional_integer("head_dim")):
        return explicit
    heads = query_heads(view)
    hidden = view.first_integer(("hidden_size", "n_embd", "d_model"))
    size = hidden // heads
    if size < 1:
        raise view.bad("hidden_size", f"{hidden} over {heads} heads leaves no head size")
    return size
