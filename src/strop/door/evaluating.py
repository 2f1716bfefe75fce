"""A run's checkpoint or any model, sampled and scored outside training."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strop.door.subject import Subject
from strop.door.trust import check_trust
from strop.errors import UserError
from strop.evaluation.run import Evaluated
from strop.evaluation.run import evaluate as run
from strop.notation import named
from strop.training import checkpoint, config
from strop.training.best import best_step
from strop.training.config import RunConfig
from strop.training.models import Loaded
from strop.training.rows import fitting

SPLITS = ("heldout", "validation", "train")
# Settings of data where some files stand for all of them.
ALONE = {
    "validation_files": (), "validation_size": 0, "heldout_size": 0, "train_size": 0, "weights": (),
}  # fmt: skip
MODELS = ("config.json", "adapter_config.json")  # either is in the folder of a model


def check_scoring(ks: Sequence[int], num_samples: int) -> None:
    """Raise UserError for k beyond the answers of a prompt."""
    if max(ks) > num_samples:
        raise UserError(f"--k {max(ks)} needs at least as many samples: give --samples {max(ks)}")


def scored(
    subject: Subject, split: str, max_prompts: int, num_samples: int, ks: tuple[int, ...], seed: int
) -> Evaluated:
    """What a split's prompts score. Raises UserError for a split that is empty, or not there."""
    task = subject.services.task
    names = tuple(dict.fromkeys((*SPLITS, *task.splits)))
    if split not in names:
        raise UserError(f"no split {split!r}: there are {', '.join(names)}")
    prompts = task.splits[split]
    if not prompts:
        others = " or ".join(f"--split {name}" for name in names if task.splits[name])
        raise UserError(f"the split {split} of {task.name} is empty: give {others} or --data FILE")
    if subject.drops_overlong:
        prompts, left_out = fitting(subject.services, subject.rollout.part, prompts, split)
        for note in left_out:
            print(f"note: {note}", file=sys.stderr)
    prompts = prompts[:max_prompts] if max_prompts else prompts
    for prompt in prompts:
        subject.services.texts.prompt_ids(prompt.uid)  # one that cannot be read is found at once
    return run(
        prompts, subject.rollout, subject.engine, subject.services,
        num_samples=num_samples, ks=ks, seed=seed,
    )  # fmt: skip


def open_subject(
    source: str,
    step: int = 0,
    task: str = "",
    data: list[str] | None = None,
    reward: list[str] | None = None,
    temperature: float = 1.0,
    max_tokens: int = 0,
    engine: str = "",
    *,
    scored: bool = True,
    start: bool = False,
    best: bool = False,
    trust: bool = False,
    assignments: Sequence[str | tuple[str, Any]] | None = None,
    loaded: Loaded | None = None,
) -> Subject:
    """A run's checkpoint or a model, ready to sample. Raises UserError.

    engine: what samples, `kind` or `kind(setting=value)`; empty: the run's, or the local one.
    scored: with the rewards, too. start: the model that the run began with. best: its best
    checkpoint. trust: what the run's
    configuration names may be imported.
    assignments: settings in place of the run's. loaded: the model, where it is in memory already;
    `source` is where it is from.
    """
    if loaded is None:
        settings, model = checkpoint_of(source, step, start, best)
    else:
        settings, model = config.make({"model": {"name": source or "loaded"}}), source
    options: dict[str, Any] = {}
    if task or data:
        kept = settings.data.task_config if task == settings.data.task else {}
        options["data"] = {
            **ALONE, "task_config": kept, "task": task, "files": tuple(data or ())
        }  # fmt: skip
    if reward or not scored:
        options["reward"] = {"functions": tuple(reward or ()), "weights": ()}
    if not trust:  # a model alone has the defaults, which name nothing
        check_trust(settings, {**options, **({"engine": engine} if engine else {})}, source)
    dumped = settings.model_dump()
    if engine:
        kind, given = named(engine)
        dumped["engine"] = {"kind": kind, **given}
    merged = {**dumped, **{
        section: {**dumped[section], **values} for section, values in options.items()
    }}  # fmt: skip
    merged = config.override(merged, assignments or [])
    return Subject.open(config.make(merged), model, temperature, max_tokens, scored, loaded)


def checkpoint_of(
    source: str, step: int, start: bool = False, best: bool = False
) -> tuple[RunConfig, str]:
    """The settings and the model's folder or name of a run's checkpoint, or of a model itself.

    step: of the checkpoint; 0: the newest. start: what the run began with. best: the one that was
    best by `training.best`. Raises UserError when there is none.
    """
    folder = Path(source)
    if (folder / "config.toml").is_file():
        settings = config.load(folder / "config.toml")
        asked = [f"--step {step}"] * bool(step) + ["--start"] * start + ["--best"] * best
        if len(asked) > 1:
            raise UserError(f"{' and '.join(asked)} name two models: leave one out")
        if start:
            return settings, settings.model.name
        if best:
            step = best_step(settings, folder)
        place = checkpoint.at(folder / "checkpoints", step)
        for note in checkpoint.unchecked(place):
            print(f"note: {note}", file=sys.stderr)
        return settings, str(place)
    if folder.is_dir() and not any((folder / name).is_file() for name in MODELS):
        raise UserError(
            f"{folder} is neither a run (config.toml) nor a model (config.json) nor an adapter "
            "(adapter_config.json)"
        )
    if best:
        raise UserError(f"--best names a checkpoint of a run, {source} is a model: leave it out")
    return config.make({"model": {"name": source}}), source
