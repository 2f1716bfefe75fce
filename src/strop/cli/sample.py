"""`strop sample`: samples answers of a checkpoint."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from strop.cli.evaluate import Engine, MaxTokens, Settings, Source, Temperature, Trust
from strop.cli.waiting import loading
from strop.support.output import plain_console


def sample(
    source: Source,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; without one, lines are read until the end.")
    ] = None,
    num_samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Answers.")] = 4,
    temperature: Temperature = None,
    max_tokens: MaxTokens = 0,
    step: Annotated[int, typer.Option(help="Checkpoint of the run; 0: the newest.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    engine: Engine = "",
    assignments: Settings = None,
    trust: Trust = False,
) -> None:
    """Print answers to a prompt with their mean log-probability per token (nats).

    A tokenizer with a chat template gets the prompt as a user's message, after the run's system
    prompt, unless `data.prompt_as` is `text`. Of a run of episodes too, it answers this one text:
    `strop eval` plays episodes.
    """
    loading(source)
    from strop.api.inference import open_model

    console = plain_console(soft_wrap=True)
    with open_model(
        source,
        step,
        temperature=temperature,
        max_tokens=max_tokens,
        engine=engine,
        assignments=assignments,
        scored=False,
        trust=trust,
    ) as subject:
        task = subject.services.task
        if task.environment is not None or task.agent:
            plain_console(stderr=True, soft_wrap=True).print(
                f"[yellow]note:[/] {escape(task.name)} is played in turns; these are answers to "
                f"one text. Whole episodes: strop eval {escape(source)}"
                f"{' --trust-files' if trust else ''}"
            )
        ends = {
            "stop": "",
            "length": f"  (cut off at {subject.services.limits.episode_tokens} tokens)",
        }
        prompts = [prompt] if prompt is not None else _lines(console)
        for text in prompts:
            for answer, logp, ended in subject.answer(text, num_samples, seed):
                note = ends.get(ended, f"  ({ended})")
                console.print(f"{logp:8.3f}  {answer}{note}", markup=False)


def _lines(console: Console) -> Iterator[str]:
    """The lines that are entered, without empty ones."""
    with suppress(EOFError):
        while True:
            if text := console.input("> " if sys.stdin.isatty() else ""):
                yield text
