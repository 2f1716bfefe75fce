"""The settings of a run: one TOML file that reproduces it.

Sections (settings.py) hold what is not the method: model, data, training, evaluation. The method is
a recipe in one-line notation and the values of its options by full path under [algorithm].
"""

import math
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import (
    BaseModel,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from strop.assets import SHIPPED, task_of
from strop.catalogue import peers
from strop.engines.open import ENGINES, EngineSettings, kinds_with, read, settings_of
from strop.environments.base import JOINED
from strop.method import notation, reading
from strop.method.algorithm import Algorithm, Method
from strop.method.check import check
from strop.method.masks import with_mask
from strop.method.part import Use
from strop.method.schedule import Schedule, before, extreme_steps, number_at
from strop.parts.rollout.base import SamplingFields
from strop.support.errors import UserError, check_value
from strop.support.files import toml_of
from strop.training.settings.method import (
    balancing,
    complete,
    composed,
    drawing_from_sources,
    learning_from,
    sampling_anew,
    with_options,
)
from strop.training.settings.players import EACH, RolesSettings
from strop.training.settings.sections import (
    MOST,
    CriticSettings,
    DataSettings,
    EvaluationSettings,
    ModelSettings,
    PhaseSettings,
    RaySettings,
    RewardSettings,
    Section,
    TrackingSettings,
    TrainingSettings,
)

# Sections, and settings of theirs that are read only where one of others is given, with the others.
# (Those of Ray are not here: a run may be resumed without its cluster.)
READ_WITH = (
    ("model", ("lora_alpha", "lora_targets"), ("lora_rank",)),
    ("data", ("reader", "prompt_column", "columns"), ("files", "validation_files")),
    ("reward", ("weights",), ("functions",)),
    ("roles", ("reset_on_swap",), ("swap_every",)),
    ("roles", ("league_share", "league_size", "league_k"), ("league_every",)),
    ("training", ("renew_between_tokens", "collector_device"), ("max_staleness",)),
    ("training", ("best_is",), ("best",)),
)


class RunConfig(Section):
    """A whole run."""

    recipe: str = Field(
        default="grpo",
        description="name(parameter=value, ...) of the method; empty: [stages] alone",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of all random draws of the run")
    threads: int = Field(default=0, ge=0, le=MOST, description="CPU threads; 0: what torch chooses")
    model: ModelSettings = ModelSettings()
    roles: RolesSettings = RolesSettings()
    data: DataSettings = DataSettings()
    reward: RewardSettings = RewardSettings()
    training: TrainingSettings = TrainingSettings()
    engine: SerializeAsAny[EngineSettings] = Field(default_factory=lambda: read({}))
    ray: RaySettings = RaySettings()
    critic: CriticSettings = CriticSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    tracking: TrackingSettings = TrackingSettings()
    stages: dict[str, str | list[str]] = Field(
        default={}, description="parts of a stage in place of the recipe's"
    )
    algorithm: dict[str, Any] = Field(default={}, description="options of the method by full path")
    phases: dict[str, PhaseSettings] = Field(
        default={}, description="algorithms one after another, by name"
    )

    @field_validator("engine", mode="wrap")
    @classmethod
    def _engine_of_its_kind(cls, value: Any, _: Any) -> EngineSettings:
        return read(value)

    @model_validator(mode="after")
    def _task_is_written_down(self) -> "RunConfig":
        """Without files and a task, a shipped model gets the task that it was made for."""
        if not self.data.files and not self.data.task:
            self.data = self.data.model_copy(update={"task": task_of(self.model.name)})
        return self

    @model_validator(mode="after")
    def _style_is_written_down(self) -> "RunConfig":
        """A built-in environment uses the few characters that a shipped model knows, and words for
        all other models; the choice is written to the file as if it was given.
        """
        source = self.data.environment()
        if source is not None:
            options = source.styled("compact" if self.model.name in SHIPPED else "plain")
            self.data = self.data.model_copy(update={"task_config": dict(options)})
        return self

    @model_validator(mode="after")
    def _players_are_written_down(self) -> "RunConfig":
        """With `roles.play=each` every role gets an adapter: `role_0`, `role_1` and so on."""
        if self.roles.play == EACH:
            source = self.data.environment()
            roles: tuple[int, ...] = ()
            if source is not None:
                with source.opened() as made:
                    roles = made.roles
            if not roles:
                raise ValueError(
                    "roles.play=each needs a game, whose environment says which roles it has: name "
                    "the players, {0: first, 1: second}"
                )
            play = {str(role): f"role_{role}" for role in sorted(set(roles))}
            self.roles = self.roles.model_copy(update={"play": play})
        return self

    def build(self) -> Method:
        """The method with all its options set, checked. Raises UserError."""
        method = composed(self.recipe, self.stages, self.phases).each(self.for_task)
        method = method.each(lambda each: balancing(each, self.model.router_aux_loss_coef))
        method = with_options(method, self.algorithm, self.phases).each(with_mask)
        check(method)
        method.check_steps(self.training.steps)
        for algorithm in method.algorithms:
            algorithm.check_schedules(self.training.steps)
        self._check_read()
        self.engine.check(self.training.steps)
        self.engine.check_method(method, self.recipe)
        for name, rate in (("training.lr", self.lr()), ("critic.lr", self.critic_lr())):
            if isinstance(rate, Schedule):
                last = self.training.steps
                for step in sorted(extreme_steps(rate, last, before(rate, 1))):
                    _check_rate(name, number_at(name, rate, step, last))
        if self.evaluation.every:
            _ = self.evaluation.ks
        return method

    def _check_read(self) -> None:
        """Raise UserError for a setting that is given and would not be read."""
        for section, names, others in READ_WITH:
            own = getattr(self, section)
            if self.engine.trains or any(getattr(own, other) for other in others):
                continue  # an engine that trains says itself what it does not read
            for name in names:
                if getattr(own, name) != type(own).model_fields[name].default:
                    needed = " or ".join(f"{section}.{other}" for other in others)
                    raise UserError(
                        f"{section}.{name} is not read without {needed}: give that too, or leave "
                        f"{section}.{name} out"
                    )

    def rollout(self, phase: int = 1) -> Use:
        """The rollout of a phase, counted from 1. A run's file has that stage written out; then
        nothing else of the method is read, and no user code that it names is run. Raises UserError.
        """
        own = [*self.phases.values()][phase - 1] if self.phases else self
        if "rollout" not in own.stages:
            return self.build().algorithms[phase - 1].rollout
        plain = notation.recipe("grpo").algorithms[-1]
        algorithm = reading.replace_stage(plain, "rollout", own.stages["rollout"])
        part = algorithm.rollout.part
        given = (part.needs_traces and not self.data.has_traces()) or (
            part.needs_live and not self.data.is_live()
        )
        algorithm = algorithm if given else self.for_task(algorithm)
        known = algorithm.paths()
        theirs = {
            k: v for k, v in {**self.algorithm, **own.algorithm}.items()
            if k.startswith("rollout.") and (k in own.algorithm or reading.options_of(k, known))
        }  # fmt: skip
        algorithm = with_options(algorithm, theirs).algorithms[-1]
        if given:
            return self.for_task(sampling_anew(algorithm)).rollout  # new answers, to other prompts
        return algorithm.rollout

    def for_task(self, algorithm: Algorithm) -> Algorithm:
        """The method with a rollout that fits the task. Raises UserError where it cannot."""
        if not isinstance(algorithm.rollout.part, SamplingFields):
            raise UserError(
                f"rollout: {algorithm.rollout.label} lacks attributes that a run needs: derive "
                "its class from strop.parts.rollout.base.SamplingFields"
            )
        if self.data.weights:
            if not self.data.files and JOINED not in self.data.task:
                raise UserError(
                    "data.weights are those of data.files, or of several environments in "
                    "data.task: give --data, or leave them out"
                )
            algorithm = drawing_from_sources(algorithm, self.recipe)
        if self.data.environment() is not None:
            return learning_from("episodes", algorithm, self.recipe)
        if self.data.agent():
            return learning_from("agents", algorithm, self.recipe)
        if algorithm.rollout.part.needs_agent:
            raise UserError(
                f"{algorithm.rollout.label} runs an agent, and {self.data.task or 'the task'} is "
                "none: give data.task=agent:my_agent.py:play"
            )
        if self.data.is_live():
            return learning_from("posts", algorithm, self.recipe)
        if algorithm.rollout.part.needs_live:
            raise UserError(
                f"{algorithm.rollout.label} takes rollouts that are posted, and "
                f"{self.data.task or 'the data'} has none: give data.task=traces:live"
            )
        if self.data.has_traces():
            return learning_from("records", algorithm, self.recipe)
        if algorithm.rollout.part.needs_traces:
            raise UserError(
                f"{algorithm.rollout.label} reads recorded rollouts, and "
                f"{self.data.task or 'the data'} has none: give data.task=traces:FILE"
            )
        if algorithm.rollout.part.needs_environment:
            raise UserError(
                f"{algorithm.rollout.label} needs an environment, {self.data.task or 'the data'} "
                "is none: give data.task=corridor or another one, or a method that answers once, "
                "such as grpo"
            )
        return algorithm

    def lr(self) -> float | Schedule:
        """The policy's learning rate as a number or schedule."""
        return _rate("training.lr", self.training.lr)

    def critic_lr(self) -> float | Schedule:
        """The critic's learning rate as a number or schedule."""
        return _rate("critic.lr", self.critic.lr)

    def complete(self) -> "RunConfig":
        """The same run with every stage and every option of the method written out."""
        own = {name: phase.recipe for name, phase in self.phases.items()}
        return self.model_copy(update=complete(self.build(), own))

    def to_toml(self) -> str:
        """The text of the configuration file."""
        empty = {"phases"} if not self.phases else None
        return tomli_w.dumps(_without_none(self.model_dump(exclude=empty)))


def _rate(name: str, value: float | str) -> float | Schedule:
    """A learning rate as a number or schedule. Raises UserError."""
    rate = reading.value(value) if isinstance(value, str) else value
    if not isinstance(rate, Schedule):
        _check_rate(name, rate)
    return rate


def _check_rate(name: str, rate: object) -> None:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
        raise UserError(f"{name} must be a number >= 0 or a schedule of such, it is {rate!r}")


def load(path: Path) -> RunConfig:
    """Read the configuration file of a run; imports nothing that it names.

    Raises UserError naming the file, line or key.
    """
    raw = toml_of(path, "the configuration")
    if isinstance(raw.get("roles"), dict) and raw["roles"].get("play") == EACH:
        raise UserError(
            f"{path}: roles.play={EACH} asks the environment for its players, which a run has "
            "written down: name them, {0: first, 1: second}"
        )
    return make(raw, str(path))


def content(path: Path) -> dict[str, Any]:
    """What a configuration file sets, without what follows from it: the style of a task, say, is
    that of the file's own model. Raises UserError as `load`.
    """
    raw = toml_of(path, "the configuration")
    make(raw, str(path))
    return raw


# Other defaults for the shipped models: they are small, so they learn fast and need few tokens.
SMALL: dict[str, Any] = {
    "training": {"lr": "linear(5e-4, 0)", "steps": 200},
    "critic": {"lr": 3e-3},
    "evaluation": {"every": 50},
}


def defaults(model: str) -> dict[str, Any]:
    """The default settings for a model."""
    return {k: dict(v) for k, v in SMALL.items()} if model in SHIPPED else {}


def make(raw: dict[str, Any], where: str = "the options") -> RunConfig:
    """A configuration from plain values. Raises UserError naming the key and the nearest one."""
    check_value(raw, where)
    try:
        return RunConfig(**raw)
    except ValidationError as error:
        first = error.errors()[0]
        why = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:  # an error about several options together names them itself
            raise UserError(f"{where}: {why}") from error
        key = _key(first["loc"])
        if first["type"] == "extra_forbidden":
            kinds = kinds_with(key)
            hint = f"; engine.kind={' or '.join(kinds)} has it" if kinds else ""
            hint = hint or peers.hint(key, settings())
            raise UserError(f"{where}: no option {key}{hint}") from error
        if "stages" in key.split(".")[:3]:
            why = "a stage is text, part | part, or a list of texts"
        raise UserError(f"{where}: {key} = {first.get('input')!r}: {why}") from error


def _key(place: tuple[int | str, ...]) -> str:
    """The setting's path. For a setting of several types, pydantic appends the type."""
    if place[0] == "phases":  # phases.NAME.until, phases.NAME.stages.STAGE
        return ".".join(map(str, place[: 4 if "stages" in place[2:3] else 3]))
    path = ".".join(map(str, place))
    setting = ".".join(map(str, place[:2]))
    of_a_type = setting in settings() or place[0] == "stages"
    return setting if len(place) > 2 and of_a_type and isinstance(place[2], str) else path


METHOD = ("algorithm", "stages", "phases")  # sections of the method


def settings() -> dict[str, str]:
    """Every setting outside the method by its path, with its description."""
    found: dict[str, str] = {}
    for name, field in RunConfig.model_fields.items():
        for section in section_classes(field.annotation):
            for inner, each in section.model_fields.items():
                found[f"{name}.{inner}"] = each.description or ""
        if name not in METHOD and not section_classes(field.annotation):
            found[name] = field.description or ""
    return found


def section_classes(kind: Any) -> list[type[BaseModel]]:
    """The classes of a section: the engine has one for each kind; empty if it is no section."""
    if kind is EngineSettings:
        return [settings_of(engine) for engine in ENGINES]
    return [kind] if isinstance(kind, type) and issubclass(kind, Section) else []


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value
