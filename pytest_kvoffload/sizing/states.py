"""States per sequence: shapes and dtypes (``model_executor/layers/mamba/mamba_utils.py``, 0.32.0:98-310)."""

from __future__ import annotations

from pytest_kvoffload.sizing.heads import divide
from pytest_kvoffload.sizing.plan import Context
from pytest_kvoffload.sizing.spec import DTYPE_BYTES, STATE, LayerSpec


def ssm_dtype(context: Context, configured: str) -> str:
    """Return the dtype of the recurrent state: the flag, else the configuration's, else the model's."""
    name = context.serving.mamba_ssm_cache_dtype
    if name == "auto":
        name = configured
    if name == "auto":
        return context.model_dtype
    if name not in DTYPE_BYTES:
        raise context.view.bad("mamba_ssm_dtype", f"got {name!r}; expected float32, bfloat16 or float16")
    return name


def mamba1_state(context: Context, *, inner: int, state: int, kernel: int) -> LayerSpec:
    per_rank = divide(inner, context.serving.tp, "intermediate size of the Mamba layers")
    return LayerSpec(
        kind=STATE,
        block_size=1,
        state_shapes=((kernel - 1, per_rank), (per_rank, state)),
        state_dtypes=(context.model_dtype, ssm_dtype(context, "auto")),
        state_type="MAMBA1",
    )


def mamba2_state(
    context: Context,
    *,
    inner: int,
    groups: int,
    heads: int,
    dim: int,
    state: int,
    kernel: int,
    configured: str = "auto",
) -> LayerSpec:
    tp = context.serving.tp
    # Groups that do not divide are extended, so that each rank has the groups of its heads (mamba_utils.py:269).
    shards = groups if groups % tp == 0 else tp
    conv = divide(inner + 2 * shards * state, tp, "convolution width of the Mamba layers")
    return LayerSpec(
        kind=STATE,
        block_size=1,
        state_shapes=((kernel - 1, conv), (divide(heads, tp, "Mamba heads"), dim, state)),
        state_dtypes=(context.model_dtype, ssm_dtype(context, configured)),
        state_type="MAMBA2",
        # A prefill exports the state at its last block boundary (mamba_mixer2.py:1098, new after 0.27).
        checkpoint_blocks=1 if context.serving.at_least("0.28") else 0,
    )
