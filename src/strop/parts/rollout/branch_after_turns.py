"""Play some episodes of a prompt from its start, and branch the others off them after a turn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from strop.batch.batch import Batch
from strop.engines.asynchronous import AsyncEngine
from strop.method.part import Draw, require
from strop.method.services import Episodes, Log, Sampling, Texts
from strop.parts.rollout._playing import PLAYED, PlayingAlone, written
from strop.parts.rollout._rows import with_parents
from strop.parts.rollout._turn_trees import LOOKED_AT, Branch, Grove, TurnTree, turn_entropy
from strop.parts.rollout.base import Rollouts, shared_in
from strop.support.errors import UserError

NUM_TOP = 10  # likeliest tokens whose log-probabilities an engine reports
SEEDS = 2**62


@dataclass(frozen=True)
class BranchAfterTurns(PlayingAlone):
    """Episodes branch where the policy has become less sure than it was in its first turn.

        H = sum over the first 20 tokens of a turn and their 10 likeliest tokens of -p ln p, / ln V
        after each turn, (beam - 1) times for each episode that continues, while rollouts are left:
        branch if clip((u + weight (H - H of its first turn)) max(0, 1 - penalty l), 0, 1) >= level

    u ~ uniform(0, 1); l: rounds in a row in which the prompt began a rollout. A branch has all
    that was shown and done, continues by itself, and has its own first turn. Once all episodes of
    a prompt are over and rollouts are left, one begins at the prompt, a round. The first
    `initial` begin there at once; with `monitor`, n sigmoid(monitor (H_prompt - H_turns)) + 1 of
    n, of an answer to the prompt and the mean turn of an episode, both discarded.

    Metrics: rollout/begun (rollouts of a prompt that begin there), rollout/tokens_shared.
    Reads: draws.   Writes: as play_turns; fork_at_B counts actions' tokens.
    Source: arXiv 2507.19849 (code); arXiv 2510.14545 for l and monitor, as a public fork has them.
    Differs from the source: l counts a prompt's own rounds, there those of the whole batch.
    Nearest part: play_turns; equal to it where initial is the draw's rollouts.
    Edges: an episode's actions are repeated to bring the environment to the branch. Stateless.
    """

    writes: ClassVar[tuple[str, ...]] = PLAYED
    # Rollouts of a prompt that begin at once. Default: released code (8 of 16).
    initial: int = 8
    # (beam, weight, level) of a branch. Default: released code (2, 0.2, 0.5).
    branching: tuple[int, float, float] = (2, 0.2, 0.5)
    # How much each round in a row of new rollouts reduces the chance. Default: ours (off).
    penalty: float = 0.0
    # How strongly entropies decide about `initial`; 0: not at all. Default: released code (0).
    monitor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "initial", low=1)
        require(self, "penalty", low=0.0, high=1.0)
        require(self, "monitor", low=0.0)
        if len(self.branching) != 3 or self.branching[0] < 1:
            raise UserError(
                "branch_after_turns.branching is (beam, weight, level), beam at least 1: it is "
                f"{self.branching}"
            )

    @property
    def needs(self) -> frozenset[str]:
        """The likeliest tokens tell how sure a turn was."""
        return super().needs | {"top"}

    @property
    def facts(self) -> frozenset[str]:
        """Tokens drawn for the look ahead are discarded."""
        return frozenset({"samples_again"}) if self.monitor else frozenset()

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        episodes: Episodes, log: Log, rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        uids = [draw.uid for draw in draws]
        with self.opened(uids, draws, engine, texts, sampling, episodes) as scene:
            shown = scene.world.reset()
            total = sum(draw.num_rollouts for draw in draws)
            seeds = iter(torch.randint(SEEDS, (total, 1), generator=rng).flatten().tolist())
            own = torch.randint(SEEDS, (len(draws), 3), generator=rng).tolist()
            trees = [
                TurnTree(
                    draw, home, min(self.initial, draw.num_rollouts),
                    iter([next(seeds) for _ in range(draw.num_rollouts)]),
                    torch.Generator().manual_seed(mine[0]),
                )
                for home, (draw, mine) in enumerate(zip(draws, own, strict=True))
            ]  # fmt: skip
            asked = {
                "num_top": min(NUM_TOP, texts.num_tokens),
                "want": sampling.wanted_statistics | {"top"},
            }
            grove = Grove(self, self.branching[0] - 1, self.forks, trees, shown, scene, asked)
            if self.monitor:
                await self._divide(grove, [mine[1:] for mine in own])
            await grove.grow()
        games = [branch.episode for tree in trees for branch in tree.branches]
        batch = _with_parents(written(draws, games, scene.world, log), trees)
        metrics = {
            "rollout/begun": int((batch["parent_B"] < 0).sum()) / max(len(trees), 1),
            "rollout/tokens_shared": shared_in(batch),
        }
        return batch, None, metrics

    def forks(self, tree: TurnTree, branch: Branch) -> bool:
        """Whether an episode branches after its turn."""
        _, weight, level = self.branching
        chance = tree.coin() + weight * branch.rise
        chance *= max(0.0, 1 - self.penalty * tree.streak)
        return min(max(chance, 0.0), 1.0) >= level

    async def _divide(self, grove: Grove, seeds: Sequence[Sequence[int]]) -> None:
        """Set how many rollouts of each tree begin at once, by how unsure the policy is there."""
        texts, sampling = grove.scene.texts, grove.scene.sampling
        room = min(LOOKED_AT, grove.scene.room)
        probes = await grove.scene.engine.generate_all(
            [
                self.request(
                    sampling, texts.prompt_ids(tree.draw.uid), mine[0], room, **grove.asked
                )
                for tree, mine in zip(grove.trees, seeds, strict=True)
            ]
        )
        looks = [
            TurnTree(tree.draw._replace(num_rollouts=1), tree.home, 1, iter(mine[1:]), tree.rng)
            for tree, mine in zip(grove.trees, seeds, strict=True)
        ]
        await replace(grove, trees=looks).grow()
        for tree, probe, look in zip(grove.trees, probes, looks, strict=True):
            turns = look.branches[0].entropy
            at_prompt = turn_entropy(probe.events, texts.num_tokens)
            tree.started = started_of(
                tree.draw.num_rollouts, self.monitor, at_prompt - sum(turns) / max(len(turns), 1)
            )
            tree.home_taken = True


def started_of(number: int, sharpness: float, difference: float) -> int:
    """How many of `number` rollouts start at the prompt."""
    share = (1 + math.tanh(sharpness * difference / 2)) / 2  # the sigmoid
    return max(1, min(int(number * share) + 1, number))


def _with_parents(batch: Batch, trees: Sequence[TurnTree]) -> Batch:
    """The batch with the rollout that each one branches from."""
    parents, forks = list[int](), list[int]()
    for tree in trees:
        first = len(parents)
        parents += [b.parent + first if b.parent >= 0 else -1 for b in tree.branches]
        forks += [branch.fork_at for branch in tree.branches]
    return with_parents(batch, parents, forks)
