"""`strop sweep`: trains one method with many values of its options."""

from collections.abc import Sequence
from typing import Annotated

import typer

from strop.cli import completing
from strop.cli.compare import Jobs, Methods, Out, Written, begin, with_written
from strop.cli.waiting import loading
from strop.support.errors import UserError


@with_written
def sweep(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD [OPTION=VALUE]... OPTION=grid(A,B,...)...",
            help="A recipe in one line, or a .toml file; options as `strop train` takes them, and "
            "swept options: `grid(A,B,C)`, `log(LOW,HIGH,COUNT)`, `random(LOW,HIGH,COUNT)`.",
            autocompletion=completing.methods,
        ),
    ] = None,
    draws: Annotated[int, typer.Option(min=0, help="Seed of the values of random(...).")] = 0,
    *,
    written: Written,
    jobs: Jobs = 0,
    out: Out = None,
) -> None:
    """Train a method with every value of an option, or every combination of several, and show how
    the scores depend on them.

    `log` spaces its values by equal factors. `random` draws them uniformly, or uniformly in the
    logarithm with the word `log` in fourth place. Several grids are combined with each other;
    several random options are drawn together. Everything else is as in `strop compare`:
    `strop compare --resume FOLDER` also resumes a sweep.
    """
    loading("methods, data and rewards")
    methods, method = swept(arguments or [], draws)
    begin(written.plan(methods, method), out, jobs)


def swept(arguments: Sequence[str], draws: int) -> tuple[Methods, str]:
    """Label, words and values of every combination, and the method. Raises UserError."""
    from strop.comparison.values import combinations, label_of_values, spread
    from strop.training.settings.assignments import split

    methods, _ = split(arguments)
    if len(methods) != 1:
        raise UserError(
            "name one method to sweep, such as `strop sweep grpo training.lr=grid(1e-4,1e-3)`"
        )
    found = {text: spread(text, draws) for text in arguments}
    plain = [text for text in arguments if found[text] is None]
    given = (text.partition("=")[0].strip() for text in plain)
    rows = combinations([each for each in found.values() if each is not None], given)
    return [
        (label_of_values(row), [*plain, *(f"{name}={value}" for name, value in row)], row, "")
        for row in rows
    ], " ".join(plain)
