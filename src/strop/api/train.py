"""`strop.train` and `strop.resume`."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from strop.api.arguments import checked
from strop.api.folders import folder_of, path_of
from strop.api.inputs import Data, Reward, check_not_given, sections_of, with_judges, with_parts
from strop.api.messages import messages_in_python
from strop.api.options import DEFAULT, Recipe, combined, from_keywords, method_of
from strop.api.run import Callback, Run, let_go
from strop.api.session import Session, changed, new_folder
from strop.support.errors import UserError
from strop.training import loop
from strop.training.parallel.ranks import Ranks
from strop.training.record.run_folder import GIVEN, Record
from strop.training.settings import config as configuration
from strop.training.settings.config import RunConfig

if TYPE_CHECKING:
    from strop.api.keywords import Options

AGAIN = "strop.resume('{folder}')"


@checked
def train(
    recipe: Recipe = "",
    *,
    model: Any = None,
    data: Data | None = None,
    reward: Reward | None = None,
    validation: Data | None = None,
    task: str | type | Callable[..., Any] = "",
    tokenizer: Any = None,
    config: str | Path | None = None,
    out: str | Path | None = None,
    start: bool = True,
    progress: bool = True,
    callbacks: Sequence[Callback] | Callback = (),
    **options: "Unpack[Options]",
) -> Run:
    """Train a model with reinforcement learning. By default the shipped model trains on Countdown.

    recipe: a line such as "gspo(clip_high=4e-4)", or a method from `strop.recipe`. model: a name, a
    folder, or a model that transformers has loaded (its tokenizer may be given, too).
    data, validation: rows (dicts, a datasets.Dataset, a frame) or paths of files; either may be a
    dict of several by name; data may also be a list of recorded `strop.Rollout`. reward: a
    function, the name of one, or a list of these. task: a task in place of data, or the function of
    an agent, which is called with the rows of data. config: a TOML file. out: the run's folder.
    start: False returns the run before its first step. callbacks: called with each step.

    options: those of `strop train`, with an underscore for the dot: `training_lr=2e-5`,
    `sampling_num_prompts=8`, `seed=3`; or by their own names, `**{"loss.clip_high": 0.3}`.
    `evaluation_reward` takes functions too, as `reward` does, or a dict of them by validation set.

    Raises UserError for whatever is wrong before the first step, RunStopped where a run cannot go
    on, and KeyboardInterrupt after Ctrl-C, with the step saved.
    """
    _check_alone()
    listeners = _several(callbacks)
    method, ranks = method_of(recipe), Ranks()
    file = path_of(config, "config") if config is not None else None
    line = method if isinstance(method, str) else ""
    if file is None and method == "":
        method = line = DEFAULT
    elif file is not None and not line:
        line = configuration.make(configuration.content(file), str(file)).recipe
    with (
        messages_in_python(),
        new_folder(line, path_of(out, "out") if out is not None else None, ranks) as folder,
    ):
        with _kept_with_a_run(folder, model):
            given, loaded = sections_of(
                folder / GIVEN, model, tokenizer, data, validation, reward, task
            )
            chosen = from_keywords(with_judges(options, folder / GIVEN))
            settings = combined(method, chosen, given, file)
            settings = with_parts(settings, folder / GIVEN)
            _check_one_trainer(settings)
            started = loop.start(settings, folder, ranks, loaded)
        session = Session(started, again=AGAIN, given=True)
        run = Run.of_session(session, progress, listeners)
    return _trained(run) if start else run


@checked
def resume(
    run: "str | Path | Run",
    *,
    step: int = 0,
    start: bool = True,
    progress: bool = True,
    callbacks: Sequence[Callback] | Callback = (),
    **options: "Unpack[Options]",
) -> Run:
    """Resume a run from its newest checkpoint, or from that of `step`; later steps are cut off.

    options: those that may change (docs/RUN_FOLDER.md, "Resume a run"), as `train` takes them.
    Raises as `train`.
    """
    _check_alone()
    listeners = _several(callbacks)
    folder = folder_of(run)
    let_go(folder)
    with messages_in_python():
        settings = changed(folder, from_keywords(options))
        _check_one_trainer(settings)
        started = loop.resume(settings, folder, step, Ranks())
    session = Session(started, new=False, again=AGAIN)
    if started.finished:
        try:
            session.report()  # the run may have been killed before its report
        finally:
            session.close()
    found = Run.of_session(session, progress, listeners)
    return _trained(found) if start else found


def _trained(run: Run) -> Run:
    """Take all its steps. On an error the caller does not get the run, so it is closed."""
    try:
        return run.train()
    except BaseException:
        run.close()
        raise


def _several(callbacks: Sequence[Callback] | Callback) -> tuple[Callback, ...]:
    """The callbacks; a single one may stand without a list. Raises UserError."""
    found = tuple(callbacks) if isinstance(callbacks, Sequence) else (callbacks,)
    for each in found:
        if not callable(each):
            raise UserError(f"a callback is {type(each).__name__}: give functions of a step")
    return found


def _check_alone() -> None:
    """Raise UserError in one of several processes; also silences tokenizers' warning on forks."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "this is one of several processes, and a script trains in one: several train with the "
            "command, as docs/SCALE.md says"
        )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _check_one_trainer(settings: RunConfig) -> None:
    """Raise UserError where other processes than this one would train."""
    if settings.ray.address and settings.ray.num_trainers:
        raise UserError(
            "ray.num_trainers starts processes that train, and a script trains in its own: leave "
            "it out, or train with the command"
        )


@contextlib.contextmanager
def _kept_with_a_run(folder: Path, model: Any) -> Iterator[None]:
    """Removes the files of a script's arguments, which are written inside, if no run starts; a
    model in memory then has the source that it had.
    """
    Record(folder).check_free()
    check_not_given(folder)
    source = getattr(model, "name_or_path", None)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder / GIVEN, ignore_errors=True)
        if source is not None:
            model.name_or_path = source
        raise
