"""The command `strop`: each subcommand is in its own file; errors become one line."""

import errno
import faulthandler
import functools
import os
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from types import TracebackType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from strop.catalogue import peers
from strop.cli import (
    audit,
    compare,
    diff,
    doctor,
    evaluate,
    export,
    init,
    inspect,
    labs,
    listing,
    plan,
    report,
    reproduce,
    sample,
    sequence,
    serve,
    sweep,
    train,
    watch,
)
from strop.support.about import SOURCE, VERSION
from strop.support.errors import RunStopped, UserError
from strop.support.garbage_collection import beginning
from strop.support.output import Lasting, hold_numbers, plain_console
from strop.support.processes import cores_of_container
from strop.support.stopping import INTERRUPTED, interrupting

USAGE: Any = typer.BadParameter.__base__  # the base of all errors in the options themselves

# What these make is a folder, a file or a service, which does not need the text that they print.
WITHOUT_OUTPUT = {
    "train", "compare", "sweep", "sequence", "init", "export", "report", "serve", "watch",
    "inspect",
}  # fmt: skip

NOTHING_KEPT = "it has saved nothing: the same command starts again"


class Interrupted(Exception):
    """A command was stopped by a signal; the text says which, what is saved and how to resume."""


class Commands(TyperGroup):
    """All commands. Interrupts are reported by `_call` instead of being swallowed by typer."""

    def invoke(self, context: Any) -> Any:
        """Run the named command. Raises Interrupted, and RunStopped where its output is lost."""
        try:
            result = super().invoke(context)
            _check_output(context.invoked_subcommand or "")
            return result
        except KeyboardInterrupt as stopped:
            name = f"strop {context.invoked_subcommand or ''}".strip()
            kept = str(stopped) or NOTHING_KEPT
            raise Interrupted(f"{name} was stopped; {kept}") from stopped


app = typer.Typer(
    cls=Commands,
    invoke_without_command=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Reinforcement-learning post-training for language models, every idea a part.",
)


def _check_output(command: str) -> None:
    """Raise RunStopped where a command that only prints could not. A reader may close its pipe."""
    sys.stdout.flush()
    failed = getattr(sys.stdout, "failed", None)
    if failed is None or failed.errno == errno.EPIPE or command in WITHOUT_OUTPUT:
        return
    raise RunStopped(f"the output could not be written: {failed.strerror}")


def _version(value: bool) -> None:
    if value:
        print(f"strop {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Reinforcement-learning post-training for language models, every idea a part."""
    if context.invoked_subcommand is None:
        print(context.get_help())


# Modules that need torch are imported by a command when it runs.
app.command("recipes")(listing.recipes)
app.command("parts")(listing.parts)
app.command("labs", context_settings=labs.SETTINGS)(labs.labs)
app.command("init")(init.init)
app.command("train")(train.train)
app.command("eval")(evaluate.evaluate)
app.command("sample")(sample.sample)
app.command("serve")(serve.serve)
app.command("export")(export.export)
app.command("report")(report.report)
app.command("watch")(watch.watch)
app.command("inspect")(inspect.inspect)
app.command("doctor")(doctor.doctor)
app.command("diff")(diff.diff)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)
app.command("sequence")(sequence.sequence)
app.command("audit")(audit.audit)
app.command("reproduce")(reproduce.reproduce)
app.command("plan")(plan.plan)
app.command("schema")(init.schema)


def main() -> None:
    """Run the command line. Exit code 2: the user can correct it; 1: the run had to stop."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Threads that wait for each other spin only briefly before they sleep: endless spinning halves
    # the speed of a busy machine, none at all costs a third on an idle one. Torch reads it at load.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if cores := cores_of_container():  # torch would start a thread for each core that it sees
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))
    hold_numbers()
    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__)  # prints where a library crashes
    with redirect_stdout(Lasting(sys.stdout)), redirect_stderr(Lasting(sys.stderr)), beginning():
        _call()


@functools.cache
def _command() -> Any:
    """All commands with their options, which are read from the functions once per process."""
    return typer.main.get_command(app)


def _call() -> None:
    """Run the command; prints errors on the error stream, raises SystemExit with its code."""
    console = plain_console(stderr=True, soft_wrap=True)
    try:
        with interrupting():
            sys.exit(_command()(standalone_mode=False))
    except typer.Abort:
        console.print("interrupted")
        sys.exit(INTERRUPTED)
    except USAGE as error:
        console.print(f"[bold red]error:[/] {_plain(error.format_message() + _instead(error))}")
        sys.exit(2)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        console.print(f"[bold red]error:[/] a name is too long for a file: {_plain(error)[:200]}")
        sys.exit(2)
    except UserError as error:
        console.print(f"[bold red]error:[/] {_plain(error)}")
        sys.exit(2)
    except RunStopped as error:
        console.print(f"[bold red]stopped:[/] {_plain(error)}")
        sys.exit(1)
    except KeyboardInterrupt:  # while the options of all commands are read
        console.print("[bold red]interrupted:[/] strop was stopped before it started")
        sys.exit(INTERRUPTED)
    except Interrupted as stopped:
        console.print(f"[bold red]interrupted:[/] {_plain(stopped)}")
        sys.exit(INTERRUPTED)
    except Exception as error:
        own = _inside_users_part(error)
        if own is None:
            raise
        traceback.print_exception(type(error), error, own)
        sys.exit(1)


def _inside_users_part(error: Exception) -> TracebackType | None:
    """The traceback of an error inside a user's part from the part's own code on, since strop's
    frames above it say nothing about it; None for any other error.
    """
    trace: TracebackType | None = error.__dict__.get("in_part")  # `method.part.naming` leaves it
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(str(SOURCE)):
        trace = trace.tb_next
    return trace


def _instead(error: Any) -> str:
    """What to write in place of an unknown option with --, or of a setting without --set."""
    option = getattr(error, "option_name", "")
    if "." in option:
        return ": settings are written without --, as training.lr=1e-6"
    options = {name for each in error.ctx.command.params for name in each.opts} if error.ctx else ()
    if "--set" in options and "extra argument" in error.message and "=" in error.message:
        return ": settings are given here as --set NAME=VALUE"
    return peers.ours(option)


def _plain(error: Exception | str) -> str:
    """The message, its lines below each other, with rich's markup characters made harmless."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    return "\n  ".join(filter(None, lines)).replace("[", r"\[")
