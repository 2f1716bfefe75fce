"""`strop serve`: serves a checkpoint with OpenAI's and Anthropic's protocols."""

import contextlib
import json
import shlex
from typing import Annotated, Any

import typer

from strop.cli.evaluate import Engine, Settings, Source, Trust
from strop.cli.waiting import loading
from strop.support.errors import RunStopped

EXAMPLE = "3,5,7:22="  # a prompt that the shipped models complete


def serve(
    source: Source,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of this machine; 0: any free one.")
    ] = 8000,
    host: Annotated[
        str, typer.Option(help="Address; `0.0.0.0` lets other machines connect, unencrypted.")
    ] = "127.0.0.1",
    key: Annotated[
        str,
        typer.Option(
            "--api-key",
            envvar="STROP_API_KEY",
            show_envvar=True,
            help="Key that clients send; by default a random one.",
        ),
    ] = "",
    step: Annotated[int, typer.Option(help="Checkpoint of the run; 0: the newest.")] = 0,
    name: Annotated[
        str,
        typer.Option("--model-name", help="The model's name for clients; default: RUN_OR_MODEL."),
    ] = "",
    max_tokens: Annotated[
        int,
        typer.Option(min=0, help="Most new tokens where a client sets no limit; 0: the context's."),
    ] = 0,
    chat_template: Annotated[
        str, typer.Option(help="File with the chat template; default: the model's own.")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of calls that give none.")] = 0,
    engine: Engine = "",
    assignments: Settings = None,
    trust: Trust = False,
) -> None:
    """Serve a checkpoint with OpenAI's and Anthropic's protocols, for agents and their frameworks.

    Routes: `/v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/messages`,
    `/inference/v1/generate`, `/v1/models`, `/health`. Answers have token ids, log-probabilities and
    the version of the weights where a client requests them. Ctrl-C ends it.
    """
    given: list[str | tuple[str, object]] = [*(assignments or [])]
    if chat_template:
        given.append(("model.chat_template", chat_template))
    opening = {"engine": engine, "assignments": given, "trust": trust}
    serving = {"host": host, "port": port, "key": key, "max_tokens": max_tokens, "seed": seed}
    _serve(source, step, name, opening, serving)


def _serve(
    source: str, step: int, name: str, opening: dict[str, Any], serving: dict[str, Any]
) -> None:
    """Serve until a signal comes. Raises RunStopped where the engine fails."""
    from strop.serving.app import check_installed

    check_installed()
    loading(source)
    from strop.api.arguments import check_seed
    from strop.api.inference import open_model
    from strop.api.serve import name_of, server_of
    from strop.support.stopping import explained

    check_seed(serving["seed"])
    named = name or name_of(source)
    with explained(lambda: "the model is no longer served"):
        with contextlib.ExitStack() as below:
            subject = below.enter_context(open_model(source, step, scored=False, **opening))
            server, backend = server_of(subject, named, below, **serving)
        with server:
            print(_shown(server.url, server.key, named, backend.max_model_len), flush=True)
            backend.ended.wait()
    raise RunStopped(f"the engine has failed: {backend.broken}")


def _shown(url: str, key: str, name: str, context: int) -> str:
    """The server's address, and commands to paste into another terminal."""
    body = {"model": name, "messages": [{"role": "user", "content": EXAMPLE}]}
    return "\n".join(
        [
            f"{name}, context {context} tokens, at {url} (Ctrl-C ends it)",
            f"export OPENAI_BASE_URL={url}/v1",
            f"export OPENAI_API_KEY={shlex.quote(key)}",
            'curl "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" '
            f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}",
        ]
    )
