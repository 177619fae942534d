"""Attaching to a server that runs already, or to a router with several behind it."""

from __future__ import annotations

from pytest_kvoffload.engine.event_sources import event_sources
from pytest_kvoffload.engine.fleet import differences_between, find_fleet
from pytest_kvoffload.engine.masking import mask_text, mask_value
from pytest_kvoffload.engine.readback import local_session
from pytest_kvoffload.engine.server import RunningServer
from pytest_kvoffload.errors import EngineError, UsageError
from pytest_kvoffload.records import EngineConfig, ModelConfig, ServerInfo


def attach(engine: EngineConfig, *, model: ModelConfig | None = None) -> RunningServer:
    """Use a server that runs already; it is never stopped.

    Requests go to ``engine.url``. Where that is a router, the engines behind it are read and reset one by one: those of
    ``engine.engine_urls``, or those that ``engine.metrics_urls`` or the router itself name.

    Raises:
        UsageError: no URL.
        EngineError: it does not answer ``/health`` with 200, serves another model than ``model.served_name``, or an
            engine behind it cannot be reached.
    """
    if not engine.url:
        raise UsageError(
            "an engine of kind 'attach' needs its url: [engine] url = \"http://host:port\", or --kvoffload-url"
        )
    import requests

    url = engine.url.rstrip("/")
    shown = mask_text(url)
    with local_session(trust_environment=True) as session:
        try:
            status = session.get(f"{url}/health", timeout=10).status_code
        except requests.RequestException as error:
            raise EngineError(
                f"no server answers at {shown}: {type(error).__name__}; is it up, and is the URL right?"
            ) from None
        if status != 200:
            raise EngineError(f"the server at {shown} is not healthy: /health answers {status}")
        fleet = find_fleet(engine, url, session)
        sources = event_sources(engine, url, fleet.engine_urls, session) if engine.kv_events else ()
    read = fleet.answers[0]
    wanted = model.served_name if model else None
    if wanted and read.models and wanted not in read.models:
        raise EngineError(f"the server at {shown} serves {', '.join(read.models)}, not {wanted!r}")
    info = ServerInfo(
        url=url,
        metrics_urls=tuple(fleet.metrics_urls),
        engine_kind="attach",
        model=wanted or (read.models[0] if read.models else ""),
        vllm_version=read.vllm_version,
        max_model_len=read.max_model_len,
        block_size_tokens=read.block_size_tokens,
        num_gpu_blocks=read.num_gpu_blocks,
        kv_transfer_config=mask_value(read.kv_transfer_config),
        differences=differences_between(fleet.engine_urls, fleet.answers) if fleet.engine_urls else (),
        resets=fleet.resets,
        engine_urls=fleet.engine_urls,
        replicas=fleet.replicas,
        kv_event_sources=sources,
    )
    return RunningServer(info, None)
