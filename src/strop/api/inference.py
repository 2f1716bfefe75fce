"""A run's checkpoint or any model, opened to sample and to score outside training."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strop.api.arguments import check_seed
from strop.api.inputs import facts_of
from strop.api.trust import check_trust
from strop.data.encode import encode_prompt
from strop.data.prompts import Prompt
from strop.engines.asynchronous import asynchronous
from strop.engines.base import Answer, Engine, Request
from strop.environments.tasks import Task
from strop.evaluation.run import Evaluated
from strop.evaluation.run import evaluate as run
from strop.method import reading
from strop.method.algorithm import phase_at
from strop.method.check import MOST_ROLLOUTS
from strop.method.engine_needs import check as check_engine
from strop.method.notation import named
from strop.method.part import Use, at_step
from strop.parts.rollout import substitutes
from strop.support.errors import UserError, several
from strop.support.folder_hints import model_inside, run_inside
from strop.support.output import visible
from strop.training.learner.models import Loaded
from strop.training.loading import load_model, open_engine
from strop.training.parallel.ranks import Ranks
from strop.training.playing import open_environment_workers
from strop.training.record import checkpoint
from strop.training.record.best import best_step
from strop.training.record.checkpoint import is_checkpoint
from strop.training.record.fingerprint import check_same, of_training
from strop.training.roles import check_engine as check_roles
from strop.training.rows import fitting
from strop.training.services.run import RunServices
from strop.training.settings import config
from strop.training.settings.assignments import override
from strop.training.settings.config import RunConfig
from strop.training.settings.sections import FILES_ALONE
from strop.training.setup import load_prompts, make_services, open_judges


@dataclass
class InferenceModel:
    """A model with its engine, services and rollout strategy in plain form."""

    loaded: Loaded
    engine: Engine
    services: RunServices
    rollout: Use
    drops_overlong: bool

    @classmethod
    def open(
        cls,
        config: RunConfig,
        model: str,
        temperature: float | None = None,
        max_tokens: int = 0,
        scored: bool = True,
        given: Loaded | None = None,
        run: Path | None = None,
        alone: bool = False,
    ) -> "InferenceModel":
        """Open the model `model` with the configuration's task and rewards. Raises UserError.

        Answers are sampled as in the configuration's validation: its method's plain strategy, with
        its temperature and cuts, of the checkpoint's phase and step. temperature: in place
        of its own. max_tokens: the most new tokens; 0: its own or the task's. scored: open the
        rewards too. given: the model, where it is already in memory. run: the folder of the run
        whose rows are scored, which have to be those that it was started with. alone: the model is
        no run's: its generation settings may limit new tokens.
        """
        part, at = _rollout_of(config, Path(model))
        part = replace(part, max_tokens=max_tokens or part.max_tokens)
        if temperature is not None:
            part = replace(part, temperature=temperature)
        needs = scored and not config.evaluation.reward
        task = load_prompts(config.data, config.reward, needs_reward=needs)
        task = task if scored else replace(task, rewards=())
        if scored and task.is_recorded and not (task.rewards or config.evaluation.reward):
            raise UserError(
                f"{task.name} holds recorded rollouts, whose rewards say nothing of new answers: "
                "give prompts and what scores them, --data FILE --reward NAME, or --task NAME"
            )
        loaded = load_model(config, model, config.engine.needs_model, given=given)
        if not part.max_tokens:
            task = _within(task, loaded, alone)
        with ExitStack() as on_error:
            engine = open_engine(config, config.engine.newest(), loaded)
            on_error.callback(engine.close)
            sampler = Use(substitutes.scoring(part))
            check_engine([(f"rollout.{sampler.label}", sampler)], engine, config.engine.kind)
            with _naming_max_tokens():
                services = make_services(config, loaded, task, sampler.part)
            on_error.callback(services.close)
            if run is not None:
                now = {"train": of_training(services.task)}  # as the model reads them
                check_same(run, now, "score other rows: --data FILE (no row is then held out)")
            services.sampling.attach(engine)
            check_roles(config, engine)
            services.sampling.cast.step = at
            if scored:
                open_judges(config, services, Ranks(), needed=False)
            open_environment_workers(config, services, Ranks())
            on_error.pop_all()
        return cls(loaded, engine, services, sampler, config.data.overlong == "drop")

    def __enter__(self) -> "InferenceModel":
        return self

    def __exit__(self, *error: object) -> None:
        """Close the services, with the grader's processes, and the engine."""
        with closing(self.engine):
            self.services.close()

    def answer(self, prompt: str, num_samples: int, seed: int) -> list[tuple[str, float, str]]:
        """Sample answers to a prompt given as text: (text, mean log-probability, how it ended).

        The mean is NaN where the engine does not report it. For a failed answer, how it ended
        includes the reason.
        """
        check_samples(num_samples)
        check_seed(seed)
        part, tokenizer, chat = self.rollout.part, self.loaded.tokenizer, self.services.texts.chat
        sampling = self.services.sampling
        limits = self.services.limits
        put = chat.put(Prompt(0, prompt, {}, "the prompt", column=""), tokenizer)
        ids = encode_prompt(put, tokenizer, chat.template)
        with _naming_max_tokens():
            replace(limits, prompt_tokens=limits.room).check_prompt(put, len(ids))
        request = Request(
            tuple(ids), limits.episode_tokens, part.temperature, part.rules(),
            stop_ids=sampling.stop_ids, stop_strings=sampling.stop_strings, seed=seed,
            want=sampling.wanted_statistics & {"logp_model"},
        )  # fmt: skip

        requests = [replace(request, seed=seed * 1000003 + n) for n in range(num_samples)]
        answers = asynchronous(self.engine).sample(requests)
        return [_answer(tokenizer, answer) for answer in answers]


def _rollout_of(config: RunConfig, place: Path) -> tuple[Any, int]:
    """The rollout part in a checkpoint's phase and at its step, and that step; 1: no checkpoint."""
    at = phase = 1
    if is_checkpoint(place):
        at = checkpoint.step_of(place)
        if config.phases:
            phase = phase_at(checkpoint.read(place)["state"])["number"]
    return at_step(config.rollout(phase).part, at, config.training.steps), at


def _within(task: Task, loaded: Loaded, alone: bool) -> Task:
    """The task with the most tokens that the model states for itself, if it is no run's, and that
    fit its context: the task's own are a default, not a choice.
    """
    own = getattr(loaded.generation, "max_new_tokens", None) if alone else None
    most = own or task.max_tokens
    return replace(task, max_tokens=most if most < loaded.context else max(loaded.context // 2, 1))


@contextmanager
def _naming_max_tokens() -> Iterator[None]:
    """Inside, errors name --max-tokens instead of the run's setting."""
    try:
        yield
    except UserError as error:
        why = re.sub(r"set rollout\.max_tokens=(\d+)", r"give --max-tokens \1", str(error))
        raise UserError(why.replace("rollout.max_tokens", "--max-tokens")) from error


def _answer(tokenizer: Any, answer: Answer) -> tuple[str, float, str]:
    logp = [value for event in answer.events for value in event.values_of("logp_model")]
    text = tokenizer.decode(list(answer.ids), skip_special_tokens=True)
    why = answer.events[-1].why
    ended = f"{answer.ended}: {why}" if why else answer.ended
    return text, sum(logp) / max(len(logp), 1), ended


SPLITS = ("heldout", "validation", "train")
MODELS = ("config.json", "adapter_config.json")  # a model's folder has one of these


def check_samples(num_samples: int) -> None:
    """Raise UserError for no answer to a prompt, and for more than a step of a run may have."""
    if not 1 <= num_samples <= MOST_ROLLOUTS:
        raise UserError(f"{num_samples} answers to a prompt: give 1 to {MOST_ROLLOUTS}")


def check_scoring(ks: Sequence[int], num_samples: int) -> None:
    """Raise UserError for k above the number of answers, and for too many answers."""
    check_samples(num_samples)
    if max(ks) > num_samples:
        raise UserError(
            f"--k {max(ks)} needs at least as many samples: give --samples {max(ks)}, or "
            f"--k {num_samples}"
        )


def scored(
    subject: InferenceModel,
    split: str,
    max_prompts: int,
    num_samples: int,
    ks: tuple[int, ...],
    seed: int,
) -> Evaluated:
    """Score a split's prompts. Raises UserError for a split that is empty or does not exist."""
    check_seed(seed)
    if max_prompts < 0:
        raise UserError(f"--prompts {max_prompts}: give a number of prompts, or 0 for all")
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
    if split not in subject.services.judges and (note := subject.services.grading.sum_note):
        print(f"note: {note}", file=sys.stderr)
    prompts = prompts[:max_prompts] if max_prompts else prompts
    with _naming_max_tokens():
        for prompt in prompts:  # one that cannot be encoded is found before sampling
            subject.services.texts.prompt_ids(prompt.uid)
    found = run(
        prompts, subject.rollout, subject.engine, subject.services,
        num_samples=num_samples, ks=ks, seed=seed, judge=subject.services.judges.get(split),
    )  # fmt: skip
    if failures := subject.services.sampling.failures:
        print(
            f"note: requests failed ({len(failures)}), their answers are left unscored; the first: "
            f"{visible(failures[0])}",
            file=sys.stderr,
        )
    return found


def open_model(
    source: str,
    step: int = 0,
    task: str = "",
    data: list[str] | None = None,
    reward: list[str] | None = None,
    temperature: float | None = None,
    max_tokens: int = 0,
    engine: str = "",
    *,
    scored: bool = True,
    start: bool = False,
    best: bool = False,
    trust: bool = False,
    assignments: Sequence[str | tuple[str, Any]] | None = None,
    loaded: Loaded | None = None,
    split: str = "",
) -> InferenceModel:
    """Open a run's checkpoint or a model to sample. Raises UserError.

    temperature: None: the run's, or 1. engine: the engine that samples, `kind` or
    `kind(setting=value)`; empty: the run's, or the local one. scored: open the rewards too. start:
    the model that the run started from. best: its best checkpoint. trust: whether code that the
    run's configuration names may be imported. assignments: settings in place of the run's. loaded:
    the model, where it is already in memory; `source` then says where it is from. split: what will
    be scored, if anything: a refusal of the code says too that the run holds no rows out.
    """
    if loaded is None:
        settings, model = checkpoint_of(source, step, start, best)
    else:
        _check_no_checkpoint(source or "the loaded one", step, start, best)
        own = {"name": source or "loaded", **facts_of(loaded)}
        settings, model = config.make({"model": own}), source
    options: dict[str, Any] = {}
    if task or data:
        kept = settings.data.task_config if task == settings.data.task else {}
        options["data"] = {
            **FILES_ALONE, "task_config": kept, "task": task, "files": tuple(data or ())
        }  # fmt: skip
    if reward or not scored:
        options["reward"] = {"functions": tuple(reward or ()), "weights": ()}
        options["evaluation"] = {"reward": ()}
    if not trust:  # a model without a run has the defaults, which name no code
        replaced = {**options, **({"engine": engine} if engine else {})}
        _check_trust(settings, replaced, source, split, [*map(_path_of, assignments or [])])
    dumped = settings.model_dump()
    if engine:
        kind, given = named(engine)
        dumped["engine"] = {"kind": kind, **given}
    merged = {**dumped, **{
        section: {**dumped[section], **values} for section, values in options.items()
    }}  # fmt: skip
    _check_counted(assignments or [])
    final = config.make(override(merged, assignments or []))
    of_run = loaded is None and _is_run(Path(source))
    same = of_run and scored and not (task or data) and _same_rows(final, settings)
    run = Path(source) if same else None
    return InferenceModel.open(
        final, model, temperature, max_tokens, scored, loaded, run, alone=not of_run
    )


def _check_trust(
    settings: RunConfig, replaced: dict[str, Any], source: str, split: str, changed: Sequence[str]
) -> None:
    """Raise UserError where code is not allowed; the error also says where no row is held out.

    replaced: the sections that options replace; changed: the settings that are given anew.
    """
    if "data" in replaced and not replaced["data"]["task_config"]:
        replaced["task_config"] = {}
    if "ray.address" in changed:
        replaced["ray"] = {}
    try:
        check_trust(settings, replaced, source)
    except UserError as error:
        holds_out = bool(settings.data.heldout_size) or not settings.data.files
        holds_out |= "data" in replaced or "data.heldout_size" in changed
        none = "the split heldout is empty: give --split train or --data FILE"
        raise several([str(error)] + [none] * (split == "heldout" and not holds_out)) from None


# What of a run's data says which rows there are and how the model reads them; the sizes of splits
# and the seed choose from them.
ROWS = (
    "task", "task_config", "files", "reader", "prompt_column", "columns", "prompt_as",
    "system_prompt", "tools", "chat_template_kwargs", "call_form", "renderer",
)  # fmt: skip


def _same_rows(now: RunConfig, then: RunConfig) -> bool:
    """Whether two configurations read rows from the same place in the same way, and train on all
    of them: which rows are too long depends on the limits of tokens.
    """
    templates = {now.model.chat_template, then.model.chat_template}
    return (
        len(templates) == 1
        and now.data.overlong == "refuse"
        and all(getattr(now.data, name) == getattr(then.data, name) for name in ROWS)
    )


def _is_run(folder: Path) -> bool:
    return (folder / "config.toml").is_file()


LEARNING = ("training", "critic", "tracking")  # sections of which answers need no setting but
COUNTED = ("training.num_slots", "training.steps")  # these: schedules of the rollout end there


def _check_counted(assignments: Sequence[str | tuple[str, Any]]) -> None:
    """Raise UserError for a setting of training alone."""
    for path in map(_path_of, assignments):
        section = path.partition(".")[0]
        if path in config.settings():
            learns = section in LEARNING and path not in COUNTED
        else:
            stage = reading.full_name(section)
            learns = stage != "rollout" and reading.is_stage(stage)
        if learns:
            raise UserError(
                f"{path} is a setting of training: no answer depends on it (of a method's stages "
                "only the rollout samples answers, such as rollout.max_tokens); leave it out"
            )


def _path_of(assignment: str | tuple[str, Any]) -> str:
    text = assignment if isinstance(assignment, str) else assignment[0]
    return text.partition("=")[0].strip()


def checkpoint_of(
    source: str, step: int, start: bool = False, best: bool = False
) -> tuple[RunConfig, str]:
    """The settings and the model's folder or name of a run's checkpoint, or of a model itself.

    step: of the checkpoint; 0: the newest. start: the model that the run started from. best: the
    checkpoint that was best by `training.best`. Raises UserError when there is none.
    """
    folder = Path(source)
    if _is_run(folder):
        settings = config.load(folder / "config.toml")
        if len(requested := _requested(step, start, best)) > 1:
            raise UserError(f"{' and '.join(requested)} name two models: leave one out")
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
            f"(adapter_config.json): give one of these{run_inside(folder) or model_inside(folder)}"
        )
    _check_no_checkpoint(source, step, start, best)
    return config.make({"model": {"name": source}}), source


def _requested(step: int, start: bool, best: bool) -> list[str]:
    """The options by which a checkpoint of a run was requested."""
    return [f"--step {step}"] * bool(step) + ["--start"] * start + ["--best"] * best


def _check_no_checkpoint(model: str, step: int, start: bool, best: bool) -> None:
    """Raise UserError where a model is given, and a checkpoint of a run is requested."""
    if requested := _requested(step, start, best):
        verb = "name" if len(requested) > 1 else "names"
        raise UserError(
            f"{' and '.join(requested)} {verb} a checkpoint of a run, {model} is a model: leave it "
            "out"
        )
