"""Runs an audit at a base setting, and with one thing changed at a time."""

import dataclasses
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from strop.auditing.bench import NUM_STEPS, Uncountable
from strop.auditing.estimate import Audit, Limits, audit
from strop.auditing.tree import Tree, random_policy, random_tree
from strop.catalogue import catalogue
from strop.method import notation
from strop.method.algorithm import Algorithm, Method, Phases, around_refresh
from strop.method.cost import needs_of
from strop.method.schedule import Schedule
from strop.training.settings.config import RunConfig

TEACHER = 0.7  # success of the teacher, for methods that learn from one


def gives_group(path: str) -> bool:
    """Whether the option of this path is the number of answers to a prompt."""
    return path.startswith("sampling") and path.endswith("num_rollouts")


@dataclass(frozen=True)
class Setting:
    """The setting in which a method is audited.

    group: the method's `num_rollouts`; success: expected reward of the policy; staleness: number of
    true gradient steps of rate `step` that the policy has taken since the answers were drawn;
    updates: number of updates on the same answers, each of rate `step`; 0: the method's own number.
    shape: seed of the tree and of the policy; a teacher has the next seed.
    """

    depth: int = 3
    branching: int = 2
    ragged: bool = True
    prompts: int = 1
    share: float = 0.5
    group: int = 4
    success: float = 0.3
    staleness: int = 0
    updates: int = 0
    step: float = 0.3
    shape: int = 1

    def tree(self) -> Tree:
        """The tree, with rewards seeded by `shape`. Raises UserError."""
        return random_tree(
            self.depth, self.branching, num_prompts=self.prompts, share=self.share,
            ragged=self.ragged, seed=self.shape,
        )  # fmt: skip


def one(settings: RunConfig, setting: Setting, limits: Limits, phase: int = 1) -> Audit:
    """Audit a run's method, in one of its phases, at a setting. Raises UserError."""
    tree = setting.tree()
    theta = random_policy(tree, setting.success, setting.shape)
    behaviour, algorithm = theta, compose(settings, setting, phase)
    taught = "teacher" in needs_of(algorithm) or around_refresh(algorithm)[0]
    teacher = random_policy(tree, TEACHER, setting.shape + 1) if taught else None
    for _ in range(setting.staleness):  # from the current policy back, against the true gradient
        behaviour = behaviour - setting.step * tree.truth(behaviour, teacher).success_slope
    return audit(
        algorithm,
        tree,
        theta,
        group_size=rollouts_of(algorithm),
        behaviour=behaviour,
        teacher=teacher,
        step=setting.step,
        limits=limits,
        seed=setting.shape,
    )


def phases_of(settings: RunConfig) -> tuple[str, ...]:
    """The names of the method's phases; one empty name if it has none. Raises UserError."""
    method = _built(settings)
    return method.names if isinstance(method, Phases) else ("",)


def _built(settings: RunConfig) -> Method:
    if settings.recipe and "environment" in needs_of(notation.recipe(settings.recipe)):
        playing = settings.data.model_copy(update={"task": "corridor"})  # any task; none is played
        settings = settings.model_copy(update={"data": playing})
    return settings.build()


def _first_step(settings: RunConfig, phase: int) -> Algorithm:
    """The method of a phase with the numbers that its schedules have in the first step."""
    return _built(settings).in_phase(phase).at_step(1, NUM_STEPS)


def compose(settings: RunConfig, setting: Setting, phase: int = 1) -> Algorithm:
    """The method, in one of its phases, with the setting's group and updates. Raises UserError."""
    algorithm = _first_step(settings, phase)
    given, stated = _stated(settings, rollouts_of(algorithm))
    if not given:  # a method that draws more than its `num_rollouts` continues to do so
        # and one whose sampler has a number of its own draws no fewer than the group
        extra = max(rollouts_of(algorithm) - stated, 0)
        algorithm = _set(algorithm, "sampling", num_rollouts=setting.group + extra)
    if setting.updates:
        algorithm = _set(algorithm, "plan", num_epochs=setting.updates, num_minibatches=1)
    return algorithm


def group_of(settings: RunConfig, setting: Setting, phase: int = 1) -> int:
    """The method's `num_rollouts`: the setting's, or the user's own where there is one."""
    given, stated = _stated(settings, rollouts_of(_first_step(settings, phase)))
    return stated if given else setting.group


def _stated(settings: RunConfig, drawn: int) -> tuple[bool, int]:
    """Whether the user gave a number of answers, and that number or the recipe's own. drawn: by its
    sampler, which is what options give.
    """
    options = [*settings.algorithm, *(p for s in settings.phases.values() for p in s.algorithm)]
    chains = [settings.stages, *(phase.stages for phase in settings.phases.values())]
    given = any(map(gives_group, options)) or any(
        "num_rollouts" in str(chain.get("sampling", "")) for chain in chains
    )
    if given or not settings.recipe or isinstance(_built(settings), Phases):
        return given, drawn
    name, arguments = notation.named(settings.recipe)
    if "num_rollouts" in arguments:
        value = arguments["num_rollouts"]
        return True, round(value(1, NUM_STEPS) if isinstance(value, Schedule) else value)
    parameter = inspect.signature(catalogue.load("recipe", name)).parameters.get("num_rollouts")
    return False, drawn if parameter is None else int(parameter.default)


def _set(algorithm: Algorithm, stage: str, **values: int) -> Algorithm:
    """The algorithm with these fields set in the stage's part that has them. Raises Uncountable."""
    paths = algorithm.paths()
    for name, value in values.items():
        found = [p for p in paths if p.startswith(f"{stage}.") and p.endswith(f".{name}")]
        if not found:
            raise Uncountable(f"its {stage} has no {name} to set")
        algorithm = algorithm.with_knobs({found[0]: value})
    return algorithm


def rollouts_of(algorithm: Algorithm) -> int:
    """The number of answers to a prompt. Raises Uncountable if the method decides it while
    sampling.
    """
    for path, value in algorithm.paths().items():
        if path.startswith("sampling.") and path.endswith(".num_rollouts"):
            return int(value)
    raise Uncountable("its sampler states no num_rollouts")


def variations(base: Setting, **values: tuple[Any, ...]) -> Iterator[tuple[str, Setting]]:
    """The base setting, and variants with one of `values` in place of its own; none twice."""
    yield "", base
    for name, wanted in values.items():
        for value in dict.fromkeys(wanted):
            if value != getattr(base, name):
                yield name, dataclasses.replace(base, **{name: value})
