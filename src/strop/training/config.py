"""The settings of a run: one TOML file that reproduces it.

Sections hold what is not the method: model, data, training, evaluation. The method is a recipe in
one-line notation and the values of its options by full path under [algorithm].
"""

import dataclasses
import tomllib
import typing
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from strop import notation
from strop.algorithm import Algorithm
from strop.errors import UserError, nearest
from strop.part import Use
from strop.rollout.base import SamplingFields
from strop.rollout.engines.open import ENGINES, EngineSettings, kinds_with, read, settings_of
from strop.schedule import Schedule
from strop.seams import PLACE_OF, STAGES
from strop.tasks.environment import EnvironmentSource, source_of


class Section(BaseModel):
    """Unknown keys are refused; one value stands for a list of one."""

    model_config = ConfigDict(extra="forbid", validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any, info: Any) -> Any:
        declared = cls.model_fields[info.field_name].annotation
        is_list = typing.get_origin(declared) is tuple
        return (value,) if is_list and isinstance(value, str | int | float) else value


class ModelSettings(Section):
    """Which model is trained and how it is held in memory."""

    name: str = Field(
        default="tiny", description="folder, Hugging Face name, GGUF file, or tiny (shipped)"
    )
    dtype: str = Field(default="float32", description="float32, bfloat16, float16 or float64")
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1")
    gradient_checkpointing: bool = Field(default=False, description="less memory, more time")
    attention: str = Field(default="sdpa", description="attention implementation of transformers")
    chat_template: str = Field(
        default="", description="file with a chat template for the tokenizer"
    )
    lora_rank: int = Field(
        default=0, ge=0, description="train low-rank adapters of this rank; 0: all weights"
    )
    lora_alpha: int = Field(
        default=0, ge=0, description="adapters count alpha/rank times; 0: alpha is twice the rank"
    )
    lora_targets: tuple[str, ...] = Field(
        default=(), description="layers with an adapter (q_proj, ...); none: all but the head"
    )


class DataSettings(Section):
    """What is trained on."""

    task: str = Field(
        default="countdown",
        description="countdown, reasoning_gym:NAME or an environment; not with files",
    )
    files: tuple[str, ...] = Field(
        default=(), description="JSON Lines, Parquet or CSV with a prompt column"
    )
    reader: str = Field(default="auto", description="layout of rows: auto, prompt, verl, question")
    validation_files: tuple[str, ...] = Field(default=(), description="the same, for validation")
    validation_size: int = Field(
        default=0, ge=0, description="prompts of validation; 0: the task's own"
    )
    train_size: int = Field(default=0, ge=0, description="prompts of training; 0: all")
    max_prompt_tokens: int = Field(
        default=0, ge=0, description="longest prompt; 0: what the model allows"
    )
    task_config: dict[str, Any] = Field(default={}, description="options of a generated task")
    stop_strings: tuple[str, ...] = Field(default=(), description="text that ends an answer")

    def environment(self) -> EnvironmentSource | None:
        """The environment that the task is played in; None for every other task or files."""
        return None if self.files else source_of(self.task, self.task_config)


class RewardSettings(Section):
    """What scores the answers."""

    functions: tuple[str, ...] = Field(
        default=(), description="file.py:function or a built-in; none: task's"
    )
    weights: tuple[float, ...] = Field(default=(), description="one per function; none: 1 each")
    timeout_seconds: float = Field(default=10.0, gt=0, description="limit of one call")
    num_workers: int = Field(default=1, ge=1, description="grader processes")


class TrainingSettings(Section):
    """The optimiser and the loop."""

    steps: int = Field(default=300, ge=1, description="training steps")
    lr: float | str = Field(default=1e-6, description="AdamW's learning rate, or a schedule")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW: decay of the weights")
    betas: tuple[float, float] = Field(default=(0.9, 0.95), description="AdamW: its averages")
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="gradients are scaled down to this norm"
    )
    token_budget: int = Field(default=16384, ge=1, description="padded tokens of one forward pass")
    num_slots: int = Field(
        default=512, ge=1, description="sequences that the engine generates at once"
    )
    save_every: int = Field(
        default=50, ge=0, description="steps between checkpoints; 0: at the end only"
    )
    keep_checkpoints: int = Field(default=3, ge=1, description="newest checkpoints that stay")
    rollouts_every: int = Field(
        default=10, ge=0, description="steps between Parquet files; 0: none"
    )


class CriticSettings(Section):
    """The value heads of methods that have a critic."""

    lr: float | str = Field(default=1e-5, description="AdamW's learning rate, or a schedule")
    hidden_size: int = Field(
        default=0, ge=0, description="width of the heads' hidden layer; 0: that of the model"
    )
    target_tau: float = Field(
        default=0.1, gt=0, le=1,
        description="how far the heads' slow copies follow at an update, in methods with such",
    )  # fmt: skip


class EvaluationSettings(Section):
    """Scores on held-back prompts, never used in training."""

    every: int = Field(default=50, ge=0, description="steps between validations; 0: none")
    num_samples: int = Field(default=16, ge=1, description="answers per prompt")
    k: tuple[int, ...] = Field(
        default=(), description="k of pass@k and maj@k; none: 1 and num_samples"
    )
    max_prompts: int = Field(default=64, ge=1, description="prompts of a validation")

    @property
    def ks(self) -> tuple[int, ...]:
        """The k to report, smallest first. Raises UserError for one that has too few samples."""
        ks = tuple(sorted(set(self.k))) or tuple(sorted({1, self.num_samples}))
        if ks[0] < 1 or ks[-1] > self.num_samples:
            wrong = ks[0] if ks[0] < 1 else ks[-1]
            raise UserError(
                f"evaluation.k has {wrong}: it must lie between 1 and evaluation.num_samples "
                f"({self.num_samples})"
            )
        return ks


class RunConfig(Section):
    """A whole run."""

    recipe: str = Field(
        default="grpo",
        description="name(parameter=value, ...) of the method; empty: [stages] alone",
    )
    seed: int = Field(default=0, ge=0, description="of every random draw of the run")
    threads: int = Field(default=0, ge=0, description="CPU threads; 0: what torch chooses")
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    reward: RewardSettings = RewardSettings()
    training: TrainingSettings = TrainingSettings()
    engine: SerializeAsAny[EngineSettings] = Field(default_factory=lambda: read({}))
    critic: CriticSettings = CriticSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    stages: dict[str, str | list[str]] = Field(
        default={}, description="parts of a stage in place of the recipe's"
    )
    algorithm: dict[str, Any] = Field(default={}, description="options of the method by full path")

    @field_validator("engine", mode="wrap")
    @classmethod
    def _engine_of_its_kind(cls, value: Any, _: Any) -> EngineSettings:
        return read(value)

    @model_validator(mode="after")
    def _style_is_written_down(self) -> "RunConfig":
        """A built-in environment speaks to the shipped model in the few characters that it knows,
        to all others in words; the choice stands in the file like one that was given.
        """
        source = self.data.environment()
        if source is not None and source.is_built_in and "style" not in source.options:
            style = "compact" if self.model.name == "tiny" else "plain"
            options = {**self.data.task_config, "style": style}
            self.data = self.data.model_copy(update={"task_config": options})
        return self

    def build(self) -> Algorithm:
        """The algorithm with all its options set, checked. Raises UserError."""
        if self.recipe:
            algorithm = notation.recipe(self.recipe)
            algorithm = notation.replace_stages(algorithm, self.stages)
        else:
            algorithm = notation.compose(self.stages)
        if not isinstance(algorithm.rollout.part, SamplingFields):
            raise UserError(
                f"rollout: {algorithm.rollout.label} lacks what a run asks of a strategy: derive "
                "its class from strop.rollout.base.SamplingFields"
            )
        if self.data.environment() is not None:
            algorithm = _playing_turns(algorithm, self.recipe)
        elif algorithm.rollout.part.needs_environment:
            raise UserError(
                f"{algorithm.rollout.label} needs an environment, {self.data.task} is none: give "
                "data.task=corridor or another one, or a method that answers once, such as grpo"
            )
        for path, text in self.algorithm.items():
            value = notation.value(text) if isinstance(text, str) else text
            algorithm = notation.override(algorithm, path, value)
        algorithm.check()
        for step in (1, self.training.steps):
            algorithm.at_step(step, self.training.steps)
        self.engine.check(self.training.steps)
        self.lr()
        self.critic_lr()
        if self.evaluation.every:
            _ = self.evaluation.ks
        return algorithm

    def lr(self) -> float | Schedule:
        """The policy's learning rate as a number or schedule."""
        return _rate("training.lr", self.training.lr)

    def critic_lr(self) -> float | Schedule:
        """The critic's learning rate as a number or schedule."""
        return _rate("critic.lr", self.critic.lr)

    def complete(self) -> "RunConfig":
        """The same run with every stage and every option of the method written out."""
        algorithm = self.build()
        shown = {path: plain(value) for path, value in algorithm.paths().items()}
        stages = notation.written(algorithm)
        return self.model_copy(update={"algorithm": shown, "stages": stages})

    def to_toml(self) -> str:
        """The text of the configuration file."""
        return tomli_w.dumps(_without_none(self.model_dump()))


def _rate(name: str, value: float | str) -> float | Schedule:
    """A learning rate as a number or schedule. Raises UserError."""
    rate = notation.value(value) if isinstance(value, str) else value
    if isinstance(rate, Schedule) or (isinstance(rate, int | float) and rate >= 0):
        return rate
    raise UserError(f"{name} must be a number >= 0 or a schedule, it is {rate!r}")


def _playing_turns(algorithm: Algorithm, recipe: str) -> Algorithm:
    """The method with episodes in place of single answers, sampled with the same options.

    Raises UserError for a rollout that is neither plain sampling nor plays turns itself.
    """
    use = algorithm.rollout
    if (playing := use.part.playing()) is None:
        raise UserError(
            f"{recipe or 'the method'} has the rollout {use.label}, which answers once and cannot "
            "play turns: give a recipe that samples independently, such as grpo, or a task that is "
            "no environment"
        )
    if playing is use.part:
        return algorithm
    return dataclasses.replace(algorithm, rollout=Use(playing))


def load(path: Path) -> RunConfig:
    """Read a configuration file. Raises UserError naming the file, line or key."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the configuration {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not TOML: {error}") from error
    return make(raw, str(path))


# What differs for the shipped model: it is small, so it learns fast and needs few tokens.
TINY: dict[str, Any] = {
    "training": {"lr": "linear(5e-4, 0)", "steps": 200},
    "critic": {"lr": 3e-3},
    "evaluation": {"every": 50},
}


def defaults(model: str) -> dict[str, Any]:
    """The settings to begin with for a model."""
    return {k: dict(v) for k, v in TINY.items()} if model == "tiny" else {}


def make(raw: dict[str, Any], where: str = "the options") -> RunConfig:
    """A configuration from plain values. Raises UserError naming the key and the nearest one."""
    try:
        return RunConfig(**raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(piece) for piece in first["loc"])
        if first["type"] == "extra_forbidden":
            kinds = kinds_with(key)
            hint = f"; engine.kind={' or '.join(kinds)} has it" if kinds else ""
            hint = hint or nearest(key, settings())
            raise UserError(f"{where}: no option {key}{hint}") from error
        why = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{where}: {key} = {first.get('input')!r}: {why}") from error


def settings() -> dict[str, str]:
    """Every setting outside the method by its path, with its description."""
    found: dict[str, str] = {}
    for name, field in RunConfig.model_fields.items():
        for section in _sections(field.annotation):
            for inner, each in section.model_fields.items():
                found[f"{name}.{inner}"] = each.description or ""
        if name not in ("algorithm", "stages") and not _sections(field.annotation):
            found[name] = field.description or ""
    return found


def _sections(kind: Any) -> list[type[BaseModel]]:
    """The classes of a section: the engine has one for each kind; empty for what is no section."""
    if kind is EngineSettings:
        return [settings_of(engine) for engine in ENGINES]
    return [kind] if isinstance(kind, type) and issubclass(kind, Section) else []


def override(raw: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """`raw` with `path=value` assignments: settings by their path, stages by their name
    (`advantage='subtract_group_mean | spread_evenly'`), the rest options of the method.

    Options in `raw` of a stage that is given anew go with the parts that they belonged to. Raises
    UserError for an assignment without a name or of an unknown setting.
    """
    known = settings()
    result = {k: dict(v) if isinstance(v, dict) else v for k, v in raw.items()}
    for assignment in assignments:
        path, _, text = assignment.partition("=")
        path = path.strip()
        head, _, rest = path.partition(".")
        stage = path.removeprefix("stages.")
        if path not in known and notation.is_stage(stage):
            result["algorithm"] = _without_stage(result.get("algorithm", {}), stage, raw)
            result["stages"] = {**result.get("stages", {}), stage: text.strip()}
            continue
        value = notation.value(text.strip())
        if isinstance(value, Schedule):
            value = text.strip()
        if path in known and rest:
            result.setdefault(head, {})[rest] = value
        elif path in known:
            result[path] = value
        elif rest and head in (*STAGES, *notation.STAGE_ALIASES):
            result.setdefault("algorithm", {})[path] = value
        else:
            options = [*known, *STAGES, *(f"{stage}.<option>" for stage in STAGES)]
            hint = nearest(path, [*known, *PLACE_OF]) or f"; there are {', '.join(options)}"
            raise UserError(f"no option {path or assignment}{hint}")
    return result


def _without_stage(options: dict[str, Any], stage: str, raw: dict[str, Any]) -> dict[str, Any]:
    """The options of the method but for those in `raw` that lie in a stage, or in a slot."""
    old = raw.get("algorithm", {})
    return {
        path: value
        for path, value in options.items()
        if path not in old or not notation.lies_in(path, stage)
    }


def plain(value: Any) -> Any:
    """An option's value as the configuration file holds it."""
    if isinstance(value, Schedule):
        return notation.value_text(value)
    if value is None:
        return "none"
    return list(value) if isinstance(value, tuple) else value


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value
