"""The generated test model: made once per recipe, inside an engine's interpreter, and cached."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_kvoffload.engine import tiny_model
from pytest_kvoffload.engine.paths import cache_dir
from pytest_kvoffload.errors import ConfigError, ProvisionError, did_you_mean

COMPLETE = "complete"
_TIMEOUT_SECONDS = 600.0


def full_recipe(overrides: Mapping[str, int]) -> dict[str, int]:
    """Fill in the defaults.

    Raises:
        ConfigError: an unknown key, a value that is no positive whole number, or sizes that do not fit together.
    """
    recipe = dict(tiny_model.DEFAULT_RECIPE)
    for key, value in overrides.items():
        if key not in recipe:
            raise ConfigError(
                section="model.tiny",
                key=key,
                expected=f"one of {', '.join(sorted(recipe))}",
                hint=did_you_mean(key, recipe),
            )
        if not isinstance(value, int) or isinstance(value, bool) or value < (0 if key == "seed" else 1):
            raise ConfigError(section="model.tiny", key=key, got=repr(value), expected="a positive whole number")
        recipe[key] = value
    for small, large in (("heads", "hidden_size"), ("kv_heads", "heads")):
        if recipe[large] % recipe[small]:
            raise ConfigError(
                section="model.tiny",
                key=small,
                got=str(recipe[small]),
                expected=f"a divisor of {large} ({recipe[large]})",
            )
    if (recipe["hidden_size"] // recipe["heads"]) % 32:
        raise ConfigError(
            section="model.tiny",
            key="heads",
            got=str(recipe["heads"]),
            expected="a head size (hidden_size / heads) that is a multiple of 32, which vLLM's CPU attention wants",
        )
    return recipe


def ensure_tiny_model(
    python: Path, overrides: Mapping[str, int], *, progress: Callable[[str], None] | None = None
) -> Path:
    """Return the directory of the generated model, making it when it is not cached.

    Args:
        python: an interpreter with torch, transformers and tokenizers (an engine's).
        overrides: what differs from :data:`tiny_model.DEFAULT_RECIPE`.

    Raises:
        ConfigError: the recipe makes no sense.
        ProvisionError: the model could not be made; the message carries the interpreter's last words.
    """
    from filelock import FileLock

    recipe = full_recipe(overrides)
    home = cache_dir() / "models"
    home.mkdir(parents=True, exist_ok=True)
    target = home / f"tiny-{tiny_model.recipe_hash(recipe)}"
    if (target / COMPLETE).is_file():
        return target
    with FileLock(str(target) + ".lock"):
        if (target / COMPLETE).is_file():
            return target
        if progress:
            progress(f"making the test model ({recipe['layers']} layers, hidden size {recipe['hidden_size']})")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        command = [str(python), str(Path(tiny_model.__file__)), str(target), json.dumps(recipe)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProvisionError(f"the test model could not be made with {python}: {error}") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise ProvisionError(
                f"the test model could not be made with {python}: {last}. It needs torch, transformers and tokenizers; "
                f"kvoffload engine doctor checks the managed engine"
            )
        (target / "recipe.json").write_text(json.dumps(recipe, indent=1), encoding="utf-8")
        (target / COMPLETE).write_text("", encoding="utf-8")
    return target
