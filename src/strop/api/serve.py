"""`strop.serve`: serves a model or a run's checkpoint with OpenAI's protocol; and finds the address
where a running run serves its policy.
"""

import contextlib
from pathlib import Path
from typing import Any

from strop.api.arguments import check_seed, checked
from strop.api.evaluate import opened
from strop.api.folders import HasFolder, folder_of
from strop.api.inference import InferenceModel
from strop.api.messages import messages_in_python
from strop.api.options import from_keywords
from strop.engines.asynchronous import asynchronous
from strop.serving.app import check_installed
from strop.serving.engine_backend import EngineBackend
from strop.serving.server import HOST, PolicyServer
from strop.support.errors import UserError
from strop.training.services.live import Address, address_in


@checked
def serve(
    source: Any = "tiny",
    *,
    host: str = HOST,
    port: int = 0,
    key: str = "",
    name: str = "",
    tokenizer: Any = None,
    step: int = 0,
    max_tokens: int = 0,
    seed: int = 0,
    engine: str = "",
    trust_files: bool = False,
    **options: Any,
) -> PolicyServer:
    """Start a server with OpenAI's protocol, at its `url` with its `key`, until `close` or the end
    of a `with` block.

    source: a run, a run's folder, a model's folder or name, or a loaded model. port: 0 takes a free
    one. key: the bearer token that clients send; by default a random one. name: of the model for
    clients. max_tokens: the most new tokens where a client sets no limit; 0: as many as the context
    has room for. seed: of calls that give none. Others as in `evaluate`. Raises UserError.
    """
    check_installed()
    check_seed(seed)
    if not 0 <= port < 2**16:
        raise UserError(f"port is {port}: give a whole number from 0 to 65535")
    if max_tokens < 0:
        raise UserError(f"max_tokens is {max_tokens}: give a whole number of at least 0")
    with messages_in_python(), contextlib.ExitStack() as below:
        subject = below.enter_context(
            opened(source, tokenizer, step=step, engine=engine, trust=trust_files,
                   assignments=from_keywords(options), with_rewards=False)
        )  # fmt: skip
        named = name or name_of(source)
        return server_of(subject, named, below, host, port, key, max_tokens, seed)[0]


def server_of(
    subject: InferenceModel,
    name: str,
    below: contextlib.ExitStack,
    host: str = HOST,
    port: int = 0,
    key: str = "",
    max_tokens: int = 0,
    seed: int = 0,
) -> tuple[PolicyServer, EngineBackend]:
    """Start a server of an open model; returns it with its backend. Raises UserError.

    below: contexts to close after the server; the backend is added, and the server takes all over.
    """
    engine = asynchronous(subject.engine)
    longest = subject.services.limits.context_tokens
    backend = EngineBackend(
        engine,
        max_model_len=min(longest, subject.engine.longest or longest),
        stop_ids=subject.services.sampling.stop_ids,
        stop_strings=subject.services.sampling.stop_strings,
        max_tokens=max_tokens,
        seed=seed,
    )
    server = PolicyServer(
        subject.loaded.tokenizer,
        subject.services.texts.chat,
        backend,
        model=name,
        max_model_len=backend.max_model_len,
        host=host,
        port=port,
        key=key,
    )
    below.enter_context(backend)
    server.start()
    server.below.push(below.pop_all())
    return server, backend


def serve_policy(run: "str | Path | HasFolder") -> Address:
    """The address where a run on posted rollouts (`task="traces:live"`) answers calls of the model
    and receives rollouts: its `url`, `key` and `model`.

    run: a run that has started, or its folder. Raises UserError where it has no address.
    """
    return address_in(folder_of(run))


def name_of(source: Any) -> str:
    """The name of a model for clients: the last part of its folder or name."""
    if isinstance(source, HasFolder):
        source = source.folder
    elif not isinstance(source, str | Path):
        source = str(getattr(source, "name_or_path", "") or "policy")
    return Path(source).name or "policy"
