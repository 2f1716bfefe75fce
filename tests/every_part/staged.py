"""A part at its place in a method that uses it, with the trainer's own services."""

import copy
import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from fakes.services import FakeAgents, FakeLive
from models import Lab
from ragged import ragged_batch
from short_runs import fitted, of_traces, settings_for

from strop.batch import segments
from strop.batch.batch import Batch
from strop.catalogue import catalogue
from strop.catalogue.catalogue import Entry
from strop.catalogue.seams import SEAM_OF, STAGES
from strop.method import notation
from strop.method import part as parts
from strop.method.algorithm import Algorithm
from strop.method.chains import Chains, generators
from strop.method.part import Result, Use, name_of
from strop.parts.sampling.track_success import TrackSuccess
from strop.training import loading, setup
from strop.training.settings import config

# The inputs of a world: data of rows, episodes or recorded rollouts; with a reference, for parts
# that score.
WORLDS = {"rows": "grpo(beta=0.1)", "episodes": "gigpo(beta=0.1)", "traces": "grpo(beta=0.1)",
          "agents": "grpo(beta=0.1)", "live": "grpo(beta=0.1)"}  # fmt: skip


@dataclass(frozen=True)
class Staged:
    """A part's place: the method, the parts before it at its stage, and what it acts on."""

    world: Any
    algorithm: Algorithm
    stage: str
    use: Use
    before: tuple[Use, ...] = ()

    @property
    def part(self) -> Any:
        return self.use.part

    @property
    def path(self) -> str:
        return f"{self.stage}.{self.use.label}"

    def chains(self, state: Any = None, seed: int = 0, step: int = 1) -> Chains:
        """How the step would run it, from a state of the part."""
        known = {} if state is None else {self.path: state}
        self.world.services.begin_step(step)
        return Chains(generators(seed, step), self.world.services, known)

    def call(self, batch: Batch | None, state: Any = None, seed: int = 0, step: int = 1,
             **handed: Any) -> Result:  # fmt: skip
        """One call at the place."""
        return self.chains(state, seed, step).call(self.stage, self.use, batch, **handed)

    def batch(self, seed: int, group_sizes: tuple[int, ...] | None = None) -> Batch:
        """Ragged rows over prompts of the task, as the parts before this one leave them."""
        batch = over_prompts(ragged_batch(seed, group_sizes), self.world, seed)
        batch = batch.set(  # what the method writes under another name
            **{r.column: batch[r.parameter] for r in parts.reads(self.use)
               if r.column not in batch and r.parameter in batch}
        )  # fmt: skip
        if self.stage not in ("reward", "probes"):
            return batch
        return self.chains(seed=seed).write(self.stage, self.before, batch)


def over_prompts(batch: Batch, world: Any, seed: int) -> Batch:
    """The batch with prompts, tokens and rewards as the world's task could have them."""
    services = world.services
    absent = {"sequence_T"} | ({"valid_K"} if services.task.environment is None else set())
    batch = Batch({name: c for name, c in batch.columns.items() if name not in absent})
    start_B = batch["size_B"].cumsum(0) - batch["size_B"]
    within_T = torch.arange(batch.size("T")) - start_B[batch["rollout_T"]]
    first_T, second_T = within_T == 0, within_T == 1
    rng = torch.Generator().manual_seed(seed)
    ids_T = torch.randint(3, 20, (batch.size("T"),), generator=rng)  # digits and signs
    state_K = batch["state_K"].tolist()
    for row in range(1, len(state_K)):  # a tree: a state tells of those before it
        if batch["rollout_K"][row] == batch["rollout_K"][row - 1]:
            state_K[row] += 5 * (1 + state_K[row - 1])
    return batch.set(  # one prompt token, the same for a group
        id_T=torch.where(first_T, 3 + batch["group_T"], ids_T),
        mask_T=(batch["mask_T"] | second_T) & ~first_T,
        uid_P=torch.tensor(world.pool)[: batch.size("P")],
        index_K=segments.order_within(batch["rollout_K"], batch.size("B")),
        state_K=torch.tensor(state_K, dtype=torch.int64),
        reward_BM=batch["reward_BM"][:, : len(services.grading.reward_names)],
    )


@functools.cache
def first_places() -> dict[str, tuple[Algorithm, str, tuple[Use, ...], int]]:
    """By name of a part the first method that uses it, its stage, that chain and the place there.

    What stands there is frozen: every test looks at the same.
    """
    found: dict[str, tuple[Algorithm, str, tuple[Use, ...], int]] = {}
    methods = (notation.recipe(recipe.name) for recipe in catalogue.recipes())
    whole = (each.at_step(1, 10) for method in methods for each in method.algorithms)
    for algorithm in (each.with_knobs(fitted(each)) for each in whole):
        for stage in STAGES:
            chain = getattr(algorithm, stage)
            uses = chain if isinstance(chain, tuple) else (chain,)
            for n, use in enumerate(uses):
                if isinstance(use, Use):
                    found.setdefault(name_of(use.part), (algorithm, stage, uses, n))
    return found


class Stages:
    """Finds the place of a part; keeps two worlds, with rows of data and with episodes."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.worlds: dict[str, Any] = {}

    def of(self, entry: Entry) -> Staged:
        """The part's place in the first method that uses it, else alone in `grpo`."""
        if found := first_places().get(entry.name):
            algorithm, stage, uses, n = found
            plays = algorithm.rollout.part.needs_environment
            world = self.world("episodes" if plays else "rows")
            return Staged(world, algorithm, stage, uses[n], uses[:n])
        alone = Use(entry.load()())
        place = SEAM_OF[entry.folder].places[0]
        kinds = {"traces": "needs_traces", "agents": "needs_agent", "live": "needs_live",
                 "episodes": "needs_environment"}  # fmt: skip
        kind = next((k for k, need in kinds.items() if getattr(alone.part, need, False)), "rows")
        algorithm = notation.recipe("grpo")
        if "tracked" in {parameter.name for parameter in parts.parameters(alone.part)}:
            algorithm = replace(algorithm, sampling=(alone, Use(TrackSuccess())))
        return Staged(self.world(kind), algorithm, place, alone)

    def world(self, kind: str) -> Any:
        """What a run begins with."""
        if kind not in self.worlds:
            raw = settings_for(self.lab, WORLDS[kind])
            if kind == "traces":
                raw |= of_traces(self.lab)
                del raw["algorithm"]["rollout.max_tokens"]
            settings = config.make(raw)
            algorithm = settings.build()
            task = setup.load_prompts(settings.data, settings.reward)
            loaded = loading.load_model(settings)
            world = self.worlds[kind] = setup.make_world(settings, algorithm, loaded, task)
            if kind == "agents":
                world.services.agents = FakeAgents(world.services.texts.prompt_ids)
            if kind == "live":
                world.services.live = FakeLive(world.services.texts.prompt_ids)
        return self.worlds[kind]

    def close(self) -> None:
        for world in self.worlds.values():
            world.services.close()
            world.engine.close()


def entries(*folders: str) -> list[Entry]:
    """The parts of some folders."""
    return [entry for folder in folders for entry in catalogue.parts(folder)]


def alike(one: Any, other: Any) -> bool:
    """Whether two results are equal, whatever they are made of."""
    if isinstance(one, Batch):
        return isinstance(other, Batch) and alike(dict(one.columns), dict(other.columns))
    if isinstance(one, torch.Tensor):
        same = one.shape == other.shape and one.dtype == other.dtype
        return same and torch.allclose(one, other, rtol=1e-9, atol=1e-12, equal_nan=True)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) or (
            one != one and other != other
        )
    return bool(one == other)


def kept(batch: Batch) -> dict[str, torch.Tensor]:
    """A copy of every column."""
    return {name: column.clone() for name, column in batch.columns.items()}


def restored(state: Any, folder: Any) -> Any:
    """A state as a checkpoint gives it back."""
    torch.save(state, folder / "state.pt")
    return torch.load(folder / "state.pt", weights_only=True)


def copied(state: Any) -> Any:
    return copy.deepcopy(state)
