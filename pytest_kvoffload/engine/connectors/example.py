"""vLLM's ExampleConnector: whole prompts in files, for debugging."""

from __future__ import annotations

from pathlib import Path

from pytest_kvoffload.catalog.connector_options import KIND_OPTIONS
from pytest_kvoffload.engine.connectors.flags import flag_number
from pytest_kvoffload.engine.connectors.interface import ConnectorKind, LaunchContext, LaunchParts, TierClear
from pytest_kvoffload.engine.options import OptionReader

_FLAG = "--max-num-batched-tokens"
_DEFAULT_MODEL_LEN = 8192


def _build(options: OptionReader, context: LaunchContext) -> LaunchParts:
    options.only(EXAMPLE.options, hint="; extra_config = {...} passes any other key to vLLM unchecked")
    given, clear = options.text("shared_storage_path"), options.boolean("clear")
    if clear is False and given is None:
        raise options.fail("clear", "shared_storage_path beside it: a directory of this boot alone is always cleared")
    if given is not None and clear:
        _refuse_around_home(options, given)
    path = given or str(context.scratch / "example")
    # Keys are hashes of the prompt's tokens and nothing else (example_connector.py, 0.26.0 to 0.33.0): no cache salt
    # keeps an older run's files from being hits, so the directory itself must be emptied, and it must be ours to empty.
    clears = (TierClear(action="empty_directory", target=path),) if given is None or clear else ()
    extra = {"shared_storage_path": path, **options.mapping("extra_config")}
    args, notes = _batched_tokens(options, context)
    return LaunchParts(
        args=args,
        kv_transfer_config={
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        },
        clears=clears,
        salted=False,
        notes=notes,
    )


def _refuse_around_home(options: OptionReader, given: str) -> None:
    """Refuse to empty a directory that the user's home or the working directory is, or lies in."""
    directory = Path(given).resolve()
    if any(place.resolve().is_relative_to(directory) for place in (Path.home(), Path.cwd())):
        raise options.fail(
            "shared_storage_path",
            "a directory that holds nothing else beside clear = true: all that is in it is removed",
            got=given,
        )


def _batched_tokens(options: OptionReader, context: LaunchContext) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A prompt must be computed in one step: the connector saves what the first step computed as the whole prompt."""
    least = context.max_model_len or _DEFAULT_MODEL_LEN
    asked = flag_number(context.words, _FLAG)
    if asked is None:
        why = "the ExampleConnector saves a prompt in the step that begins it, so no prompt may be computed in pieces"
        return (_FLAG, str(least)), (f"{_FLAG} {least} was added: {why}",)
    if context.max_model_len is not None and asked < least:
        raise options.fail(
            None,
            f"{_FLAG} of at least max_model_len ({least}), or none: this connector saves a prompt that is computed in "
            f"pieces wrongly, and {asked} were asked for",
        )
    return (), ()


EXAMPLE = ConnectorKind(
    name="example",
    summary="ExampleConnector: whole prompts in files, for debugging",
    options=KIND_OPTIONS["example"].names,
    build=_build,
)
