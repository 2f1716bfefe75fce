"""Rows, functions and models that a script passes in place of files become files of the run.

So a run that was started from Python can be resumed, scored and compared as any other: its folder
holds everything that it was made from.
"""

import contextlib
import dataclasses
import inspect
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from strop.data.prompt_rows import stride
from strop.data.read import NAME
from strop.data.row_tables import unfilled
from strop.environments.agents import FAMILY as AGENT
from strop.environments.agents import task_of_function
from strop.environments.base import JOINED, members_of, task_of_class
from strop.rewards import pickled
from strop.support.errors import UserError
from strop.support.loading import PICKLED, attribute, write_pickled
from strop.support.writing import check_room, writing
from strop.traces.reading import row_of
from strop.traces.records import Rollout
from strop.training.learner.models import DTYPES, Loaded, load, tokenizer_of
from strop.training.record.run_folder import GIVEN
from strop.training.settings import config
from strop.training.settings.config import RunConfig

# Names of objects without a source file: defined in the script itself, or pickled with a run.
SCRIPTS = re.compile(r"__main__:\w+")
FILELESS = re.compile(rf"(?:__main__|[^\"']*{re.escape(PICKLED)}):\w+")

JUDGES = {"evaluation_reward", "evaluation.reward"}  # two names of one option

# Data: rows (dicts, a datasets.Dataset, a frame) or paths, or several of them by name. Reward: a
# function or the name of one, or several.
Data: TypeAlias = str | Path | Iterable[Any]
Reward: TypeAlias = str | Callable[..., Any] | Sequence[str | Callable[..., Any]]


def sections_of(
    folder: Path, model: Any, tokenizer: Any, data: Any, validation: Any, reward: Any, task: Any
) -> tuple[dict[str, dict[str, Any]], Loaded | None]:
    """Configuration sections of the given arguments, and the model where it is in memory.

    Arguments that are not in files are written to files in `folder`. Raises UserError.
    """
    settings, loaded = model_of(model, tokenizer, folder / "model")
    task = task_of(task)
    if are_rollouts(data):
        task, data = traces_given(data, task, folder / "traces.jsonl"), None
    whole = {
        "model": settings,
        "data": {
            "task": task,
            "files": _trained(data, folder / "data.jsonl"),
            "validation_files": sources_given(validation, folder / "validation.jsonl"),
        },
        "reward": {"functions": sources_of(reward, folder)},
    }
    given = {
        section: {name: value for name, value in values.items() if value}
        for section, values in whole.items()
    }
    return given, loaded


def task_of(task: Any) -> str:
    """The name of a task, given as such, as an environment's class, as several environments, or as
    an agent's function. Raises UserError.
    """
    if isinstance(task, list | tuple) and task:
        return JOINED.join(map(task_of, task))
    if isinstance(task, type):
        return task_of_class(task)
    if inspect.isfunction(task):
        return task_of_function(task)
    if not isinstance(task, str):
        raise UserError(
            f"task is {type(task).__name__}: give a name, such as 'corridor', the class of an "
            "environment, or the function of an agent"
        )
    return task


def are_rollouts(data: Any) -> bool:
    """Whether the data are recorded rollouts instead of rows."""
    return isinstance(data, list | tuple) and bool(data) and isinstance(data[0], Rollout)


def traces_given(rollouts: Sequence[Any], task: str, path: Path) -> str:
    """The task of recorded rollouts, which it writes to `path`. Raises UserError."""
    if task:
        raise UserError("data are recorded rollouts, which are a task of their own: leave task out")
    with writing(path.parent, "the rollouts"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            for number, rollout in enumerate(rollouts, 1):
                if not isinstance(rollout, Rollout):
                    raise UserError(
                        f"data {number} is {type(rollout).__name__}, and others are rollouts: "
                        "give strop.Rollout alone"
                    )
                file.write(_line(row_of(rollout), f"rollout {number}"))
    return f"traces:{path}"


def with_parts(settings: RunConfig, folder: Path) -> RunConfig:
    """The settings, with parts, recipes and environments of a script or notebook put into files.

    The files lie in `folder`, as those of reward functions do, so that other processes and resumed
    runs can load them.

    Raises UserError for an object that cannot be written.
    """
    settings = _with_environment(settings, folder)
    texts = (settings.recipe, settings.stages, settings.algorithm, settings.phases)
    if not any(FILELESS.search(str(text)) for text in texts):
        return settings
    raw = settings.complete().model_dump()
    for section in ("recipe", "stages", "algorithm", "phases"):
        raw[section] = _in_files(raw[section], folder, FILELESS)
    return config.make(raw)


def _with_environment(settings: RunConfig, folder: Path) -> RunConfig:
    """The settings, with an environment that stood in no file put into one; so is one of a mixture,
    which keeps its name there, and one that it wraps, which an option names.
    """
    data, found = settings.data, dict[str, Any]()
    agent = AGENT if data.task.startswith(AGENT) else ""
    if FILELESS.fullmatch(task := data.task.removeprefix(agent or "environment:")):
        found["task"] = agent + _in_file(task, folder)
    elif JOINED in data.task and FILELESS.search(data.task):
        found["task"] = JOINED.join(
            f"{label}={_in_file(member.name, folder)}" if FILELESS.fullmatch(member.name) else own
            for own, (label, member) in zip(
                data.task.split(JOINED),
                members_of(data.task, data.task_config).items(),
                strict=True,
            )
        )
    if SCRIPTS.search(str(data.task_config)):
        found["task_config"] = _in_files(data.task_config, folder, SCRIPTS)
    return (
        settings.model_copy(update={"data": data.model_copy(update=found)}) if found else settings
    )


def _in_files(value: Any, folder: Path, named: re.Pattern[str]) -> Any:
    """Notation, also inside dicts and lists, with matching names replaced by names of new files.

    named: matches the names of objects that are to be put into a file.
    """
    if isinstance(value, dict):
        return {key: _in_files(each, folder, named) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_in_files(each, folder, named) for each in value]
    if not isinstance(value, str):
        return value
    return named.sub(lambda found: _in_file(found[0], folder), value)


def _in_file(name: str, folder: Path) -> str:
    """Writes a part, recipe or environment to a file of the folder, and returns its name there."""
    thing = attribute(name)
    with writing(folder, thing.__qualname__):
        folder.mkdir(parents=True, exist_ok=True)
        return write_pickled(thing, folder / f"{thing.__qualname__}{PICKLED}")


def _trained(given: Any, path: Path) -> tuple[str, ...]:
    """Files of the training data. A plain dict has sources by name. A dict of `datasets`, whose
    splits are not all for training, and a dict of plain lists, a table's columns, are refused.
    """
    rows_by_name = type(given) is dict and not any(
        isinstance(rows, list | tuple) and not all(isinstance(row, Mapping) for row in rows)
        for rows in given.values()
    )
    return sources_given(given, path) if rows_by_name else files_of(given, path)


def check_not_given(folder: Path) -> None:
    """Raise UserError where a call's arguments would be written over existing files."""
    if (folder / GIVEN).exists():
        raise UserError(
            f"{folder} has its own {GIVEN}, where arguments of a script are stored: give another "
            "folder with --out"
        )


@contextlib.contextmanager
def tidied(folder: Path, plan: str, made: bool) -> Iterator[None]:
    """On an error inside, removes a call's arguments, which are written inside, unless the runs
    of `plan` have started.

    plan: a file of the folder. made: whether the folder was made for this call. Raises UserError
    where other files are in the arguments' place.
    """
    check_not_given(folder)
    had = (folder / plan).exists()
    try:
        yield
    except BaseException:
        if had or not (folder / plan).exists():
            shutil.rmtree(folder / GIVEN, ignore_errors=True)
            if made and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
                with contextlib.suppress(OSError):  # it holds earlier ones
                    folder.parent.rmdir()
        raise


ROWS = (
    "a path, or rows: a list of dicts, a datasets.Dataset, a pandas or polars frame, or an Arrow "
    "table"
)


def files_of(given: Any, path: Path) -> tuple[str, ...]:
    """Paths unchanged; rows written to the JSON Lines file `path`. Raises UserError for others.

    path: named after the argument that gave the rows; messages use that name.
    """
    if given is None:
        return ()
    if isinstance(given, str | Path):
        return (str(given),)
    if isinstance(given, list | tuple) and given and all(isinstance(f, str | Path) for f in given):
        return tuple(map(str, given))
    if hasattr(given, "save_to_disk") and not isinstance(given, Mapping) and stride(len(given)) > 1:
        return _saved(given, path)
    count = 0
    with writing(path.parent, f"the rows of {path.stem}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            for count, row in enumerate(_rows(given, path.stem), 1):
                file.write(_line(row, f"{path.stem} row {count}"))
    if not count:
        raise UserError(f"{path.stem} has no rows: give at least one")
    return (str(path),)


def _saved(given: Any, path: Path) -> tuple[str, ...]:
    """Saves a large data set of `datasets` in its own format, which is memory-mapped."""
    folder = path.with_suffix("")
    with writing(path.parent, f"the rows of {path.stem}"):
        given.save_to_disk(str(folder))
    return (str(folder),)


def sources_given(given: Any, path: Path) -> tuple[str, ...]:
    """As `files_of`, but each entry of a dict is a source or set of its own, `NAME=FILE`.

    Raises UserError.
    """
    if not isinstance(given, Mapping):
        return files_of(given, path)
    if wrong := [name for name in given if not NAME.fullmatch(str(name))]:
        raise UserError(
            f"{path.stem} has the name {wrong[0]!r}: give names of letters, digits, `.`, `_` and "
            "`-` that begin with a letter from a to z"
        )
    return tuple(
        f"{name}={file}"
        for name, rows in given.items()
        for file in files_of(rows, path.with_name(f"{path.stem}_{name}{path.suffix}"))
    )


def _rows(given: Any, name: str) -> Iterator[Any]:
    """The rows of a table, frame or iterable. Raises UserError."""
    if hasattr(given, "to_pylist"):
        yield from map(unfilled, given.to_pylist())
    elif hasattr(given, "to_dicts"):
        yield from map(unfilled, given.to_dicts())
    elif hasattr(given, "save_to_disk") and not isinstance(given, Mapping):
        yield from map(unfilled, given)
    elif hasattr(given, "iloc") and hasattr(given, "columns"):
        if not given.columns.is_unique:
            raise UserError(f"{name} has two columns of one name: give each its own")
        # pandas writes what is missing as a number
        yield from given.astype(object).where(given.notna(), None).to_dict("records")
    elif isinstance(given, Mapping):
        inside = ", ".join(map(str, given)) or "nothing"
        raise UserError(
            f"{name} is a {type(given).__name__} with {inside}: give {ROWS}; of several splits one"
        )
    elif isinstance(given, Iterable):
        yield from given
    else:
        raise UserError(f"{name} is {type(given).__name__}: give {ROWS}")


def _line(row: Any, where: str) -> str:
    if not isinstance(row, Mapping):
        raise UserError(f"{where} is {type(row).__name__}: a row is a dict, column by column")
    if wrong := [name for name in row if not isinstance(name, str)]:
        raise UserError(f"{where} has a column {wrong[0]!r}: names of columns are text")
    cells = []
    for name, value in row.items():
        try:
            cells.append(f"{json.dumps(name)}: {json.dumps(value, default=_plain)}")
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(
                f"{where}, column {name}, has a value that no file of rows can hold ({error}): "
                "make it text, a number, a list or an object of these"
            ) from error
    return f"{{{', '.join(cells)}}}\n"


def _plain(value: Any) -> Any:
    """Numbers and arrays of other libraries as Python's. Raises TypeError for anything else."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"it is {type(value).__name__}")


def with_judges(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The options of a call, with the functions that score validations written to the folder.

    `evaluation_reward` takes the same values as `reward`, or a dict of them by validation set.

    Raises UserError.
    """
    found, place = dict(options), folder / "evaluation"
    for name in JUDGES & options.keys():
        given = options[name]
        if not isinstance(given, Mapping):
            found[name] = list(sources_of(given, place))
            continue
        sources = sources_of(list(given.values()), place)
        found[name] = [f"{one}={source}" for one, source in zip(given, sources, strict=True)]
    return found


def sources_of(given: Any, folder: Path) -> tuple[str, ...]:
    """Names of rewards unchanged; functions written to files of the folder. Raises UserError."""
    several: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    several = [] if given is None else several
    functions = [each for each in several if not isinstance(each, str)]
    for each in functions:
        if not callable(each):
            raise UserError(
                f"a reward is {type(each).__name__}: give a function, the name of a built-in, "
                "file.py:function, or a list of these"
            )
    names = iter(pickled.names_of(functions))
    if functions:
        with writing(folder, "the reward functions"):
            folder.mkdir(parents=True, exist_ok=True)
    return tuple(
        each if isinstance(each, str) else _function(each, folder / f"{next(names)}.pickle")
        for each in several
    )


def _function(function: Callable[..., Any], path: Path) -> str:
    with writing(path.parent, f"the reward {path.stem}"):
        return pickled.write(function, path)


def model_of(model: Any, tokenizer: Any, folder: Path) -> tuple[dict[str, Any], Loaded | None]:
    """The settings of a model, and the loaded model where the caller has it in memory.

    folder: where such a model, or a named one with another tokenizer, is saved, so that its run
    resumes from files alone. Raises UserError.
    """
    if model is None or isinstance(model, str | Path):
        name = str(model or "")
        if tokenizer is None:
            return ({"name": name} if name else {}), None
        _check_tokenizer(tokenizer)
        _save_given(Loaded(load(name or "tiny").model, tokenizer, name), folder)
        return {"name": str(folder)}, None
    found = in_memory(model, tokenizer)
    _save_given(found, folder)
    found.model.name_or_path = str(folder)
    settings = {"name": str(folder), "device": str(found.model.device), **facts_of(found)}
    return settings, dataclasses.replace(found, source=str(folder))


def _save_given(found: Loaded, folder: Path) -> None:
    check_room(folder.parent, "the model that was given", found.num_bytes())
    with writing(folder.parent, "the model that was given", found.num_bytes(), (OSError,)):
        found.save(folder)


def in_memory(model: Any, tokenizer: Any) -> Loaded:
    """A loaded model with its tokenizer, by default that of its source. Raises UserError."""
    checked = _checked(model)
    name = str(getattr(model, "name_or_path", "") or "")
    if tokenizer is None and not name:
        raise UserError("the model does not say where it is from: give its tokenizer, tokenizer=")
    if tokenizer is not None:
        _check_tokenizer(tokenizer)
    return Loaded(checked, tokenizer_of(name) if tokenizer is None else tokenizer, name)


def facts_of(loaded: Loaded) -> dict[str, str]:
    """The settings that a loaded model has already. Raises UserError for an unknown dtype."""
    settings = {"dtype": _dtype(loaded.model)}
    if (attention := loaded.attention) is not None:
        settings["attention"] = attention
    return settings


def _checked(model: Any) -> nn.Module:
    """A causal model of transformers. Raises UserError for anything else."""
    if hasattr(model, "peft_config"):
        raise UserError(
            "model has adapters already: give the model without them, strop adds its own with "
            "model.lora_rank; or merge them first with merge_and_unload()"
        )
    needed = ("config", "save_pretrained", "get_output_embeddings")
    if not isinstance(model, nn.Module) or not all(hasattr(model, name) for name in needed):
        raise UserError(
            f"model is {type(model).__name__}: give a name, a folder, or a causal model that "
            "transformers has loaded"
        )
    return model


def _check_tokenizer(tokenizer: Any) -> None:
    """Raise UserError for an object that is not a tokenizer of transformers."""
    if not all(hasattr(tokenizer, name) for name in ("save_pretrained", "encode", "decode")):
        raise UserError(
            f"tokenizer is {type(tokenizer).__name__}: give one that transformers has loaded"
        )


def _dtype(model: Any) -> str:
    """The settings' name for the model's numbers. Raises UserError."""
    found: torch.dtype = model.dtype
    for name, dtype in DTYPES.items():
        if dtype == found:
            return name
    raise UserError(f"the model's numbers are {found}: load it as one of {', '.join(DTYPES)}")
