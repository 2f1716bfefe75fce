"""Plays episodes that branch between turns, and measures how uncertain a turn was."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from strop.engines.asynchronous import gather
from strop.engines.base import Answer, Event, Request
from strop.method.part import Draw
from strop.parts.rollout._episode import Episode
from strop.parts.rollout._playing import PlayingAlone, Scene

LOOKED_AT = 20  # so many first tokens of a turn count


def turn_entropy(events: Sequence[Event], num_tokens: int) -> float:
    """-p ln p summed over a turn's first tokens and the likeliest ones of each, over ln V."""
    tops = [top for event in events for top in event.top][:LOOKED_AT]
    logps = [logp for top in tops for logp in top.values() if logp > -math.inf]
    total = sum(-math.exp(logp) * logp for logp in logps)
    return total / math.log(num_tokens)


@dataclass
class Branch:
    """A rollout of a tree: its episode, the one it branches from, and how unsure its turns were."""

    episode: Episode
    parent: int = -1  # its place in the tree
    fork_at: int = -1  # tokens of actions that it has from its parent
    entropy: list[float] = field(default_factory=list)  # of its own turns

    @property
    def rise(self) -> float:
        """How much less certain its last turn was than its first."""
        return self.entropy[-1] - self.entropy[0]


@dataclass
class TurnTree:
    """The rollouts of one draw, in the order in which they began."""

    draw: Draw
    home: int  # the environment's number of an episode that nobody has played yet
    started: int  # rollouts that begin at the prompt before any turn
    seeds: Iterator[int]  # of the rollouts
    rng: torch.Generator
    branches: list[Branch] = field(default_factory=list)
    streak: int = 0  # rounds in a row in which a rollout began
    home_taken: bool = False

    @property
    def left(self) -> int:
        """Number of rollouts that may still begin."""
        return self.draw.num_rollouts - len(self.branches)

    def coin(self) -> float:
        """A uniform random number in [0, 1)."""
        return float(torch.rand((), generator=self.rng, dtype=torch.float64))

    def add(self, branch: Branch) -> int:
        """Add a rollout to the tree; returns its index."""
        self.branches.append(branch)
        return len(self.branches) - 1


@dataclass
class Grove:
    """All trees of a step, and the resources to play them.

    part: how actions are requested. tries: branches that may begin after a turn of an episode.
    forks: whether a branch begins. shown: what the environment shows at the prompt of each tree.
    asked: further fields of requests for actions.
    """

    part: PlayingAlone
    tries: int
    forks: Callable[[TurnTree, Branch], bool]
    trees: Sequence[TurnTree]
    shown: Sequence[Any]
    scene: Scene
    asked: Mapping[str, Any]

    async def grow(self) -> None:
        """Play all rollouts; those of a tree continue together, turn by turn."""
        await gather(self._grow(number, tree) for number, tree in enumerate(self.trees))

    async def _grow(self, number: int, tree: TurnTree) -> None:
        requests: dict[int, Request] = {}
        for _ in range(tree.started):
            requests |= self._begin(number, tree)
        while not requests and tree.left:
            requests |= self._begin(number, tree)
        while requests:
            answers = await self.scene.engine.generate_all(list(requests.values()))
            going = await self._act(tree, dict(zip(requests, answers, strict=True)))
            requests = self._round(number, tree, going)

    def _begin(self, number: int, tree: TurnTree) -> dict[int, Request]:
        """Begin a rollout at the prompt; returns its index and its first request, if it has one.

        Where the environment could not start, no rollout of the tree can.
        """
        shown = self.shown[number]
        world, texts = self.scene.world, self.scene.texts
        again = tree.home_taken and shown.exit is None
        at = world.repeat(tree.home, [], [shown.text]) if again else tree.home
        tree.home_taken = True
        episode = Episode(at, tree.draw.uid, (next(tree.seeds),), world.roles)
        place = tree.add(Branch(episode))
        if not episode.started(shown, texts.prompt_ids(tree.draw.uid)):
            return {}
        room, sampling = self.scene.room, self.scene.sampling
        return {place: self.part.action(sampling, episode.seat, room, **self.asked)}

    async def _act(self, tree: TurnTree, answers: Mapping[int, Answer]) -> dict[int, Request]:
        """Give a round's actions to the environment; returns the next requests, by branch."""
        playing = []
        for place, answer in answers.items():
            branch = tree.branches[place]
            if not branch.episode.lost(answer.events):
                branch.entropy.append(turn_entropy(answer.events, self.scene.texts.num_tokens))
                light = tuple(event._replace(top=()) for event in answer.events)
                playing.append((place, branch.episode, Answer(answer.request, light)))
        shown = await gather(self.scene.act(game, answer) for _, game, answer in playing)
        found = {
            place: self.part.next_turn(game, observation, self.scene, **self.asked)
            for (place, game, _), observation in zip(playing, shown, strict=True)
        }
        return {place: request for place, request in found.items() if request is not None}

    def _round(
        self, number: int, tree: TurnTree, going: Mapping[int, Request]
    ) -> dict[int, Request]:
        """The next requests of a tree whose actions are all done, with those of new rollouts."""
        requests, before = dict(sorted(going.items())), len(tree.branches)
        for place, request in list(requests.items()):
            for _ in range(self.tries):
                if tree.left and self.forks(tree, tree.branches[place]):
                    requests |= [self._fork(tree, place, request)]
        while not requests and tree.left:
            requests |= self._begin(number, tree)
        tree.streak = tree.streak + 1 if len(tree.branches) > before else 0
        return requests

    def _fork(self, tree: TurnTree, parent: int, request: Request) -> tuple[int, Request]:
        """Branch a rollout from the current turn of another; returns its index and next request."""
        seed, origin = next(tree.seeds), tree.branches[parent].episode
        turn = len(origin.seat.turns) - 1
        episode = origin.branched(origin.repeated(self.scene.world, turn), seed, turn)
        place = tree.add(Branch(episode, parent, episode.seat.used))
        return place, replace(request, seed=seed)
