"""Episodes that branch between turns: how unsure a turn was, and playing all that has begun."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from strop.engines.base import Event
from strop.method.part import Draw
from strop.parts.rollout._episode import Episode
from strop.parts.rollout._playing import PlayingAlone, Scene, act
from strop.parts.rollout.commands import Strategy
from strop.parts.rollout.listen import Heard, Start, converse, seeded

LOOKED_AT = 20  # first tokens of a turn
Key = tuple[int, int]  # a tree, and a branch of it


def turn_entropy(events: Sequence[Event], num_tokens: int) -> float:
    """-p ln p summed over a turn's first tokens and the likeliest ones told of each, over ln V."""
    tops = [top for event in events for top in event.top][:LOOKED_AT]
    told = [logp for top in tops for logp in top.values() if logp > -math.inf]
    total = sum(-math.exp(logp) * logp for logp in told)
    return total / math.log(num_tokens)


@dataclass
class Branch:
    """A rollout of a tree: its episode, the one it goes on from, and how unsure its turns were."""

    episode: Episode
    parent: int = -1  # its place in the tree
    fork_at: int = -1  # tokens of actions that it has from there
    entropy: list[float] = field(default_factory=list)  # of its own turns

    @property
    def rise(self) -> float:
        """How much less sure its last turn was than its first."""
        return self.entropy[-1] - self.entropy[0]


@dataclass
class TurnTree:
    """The rollouts of one draw, in the order in which they began."""

    draw: Draw
    home: int  # the environment's number of an episode that nobody has played yet
    begun: int  # rollouts that begin at the prompt before any turn
    seeds: Iterator[int]  # of the rollouts
    rng: torch.Generator
    branches: list[Branch] = field(default_factory=list)
    acting: set[int] = field(default_factory=set)  # whose action of this round is not done
    ready: dict[int, Start] = field(default_factory=dict)  # turns of the next round
    streak: int = 0  # rounds in a row in which a rollout began
    home_taken: bool = False

    @property
    def left(self) -> int:
        """Rollouts that may still begin."""
        return self.draw.num_rollouts - len(self.branches)

    def coin(self) -> float:
        """A number between 0 and 1."""
        return float(torch.rand((), generator=self.rng, dtype=torch.float64))

    def add(self, branch: Branch) -> int:
        """Begin a rollout; its place."""
        self.branches.append(branch)
        return len(self.branches) - 1


@dataclass
class Grove:
    """All trees of a step, and what they are played with.

    part: how actions are asked for. tries: branches that may begin after a turn of an episode.
    forks: whether one does. shown: what the environment shows at the prompt of each tree. asked:
    further fields of requests for actions.
    """

    part: PlayingAlone
    tries: int
    forks: Callable[[TurnTree, Branch], bool]
    trees: Sequence[TurnTree]
    shown: Sequence[Any]
    scene: Scene
    asked: Mapping[str, Any]

    def grow(self) -> Strategy:
        """Play all rollouts; those of a tree go on together, turn by turn."""
        starts: dict[Key, Start] = {}
        for number, tree in enumerate(self.trees):
            starts |= {(number, place): s for place, s in self._first(number, tree).items()}

        def follow(ended: Mapping[Key, Heard]) -> Mapping[Key, Start]:
            self._act(ended)
            found: dict[Key, Start] = {}
            for number in sorted({number for number, _ in ended}):
                tree = self.trees[number]
                if not tree.acting:
                    found |= {(number, p): s for p, s in self._round(number, tree).items()}
            return found

        yield from converse(starts, follow)

    def _first(self, number: int, tree: TurnTree) -> dict[int, Start]:
        """The first turns of what begins at once."""
        starts = dict(self._begin(number, tree) for _ in range(tree.begun))
        tree.acting = set(starts)
        return starts

    def _begin(self, number: int, tree: TurnTree) -> tuple[int, Start]:
        """A rollout that begins at the prompt: its place and its first turn."""
        shown = self.shown[number]
        world, texts = self.scene.world, self.scene.texts
        at = world.repeat(tree.home, [], [shown.text]) if tree.home_taken else tree.home
        tree.home_taken = True
        episode = Episode(at, tree.draw.uid, (next(tree.seeds),), world.roles)
        seat = episode.turn_to(shown)
        seat.show(shown, texts.prompt_ids(tree.draw.uid), episode.role_of(shown))
        start = self.part.submit(self.scene.sampling, seat, self.scene.room, **self.asked)
        return tree.add(Branch(episode)), start

    def _act(self, ended: Mapping[Key, Heard]) -> None:
        """Give actions to the environment, and keep what follows for the next round."""
        playing: dict[Key, Branch] = {}
        heard: list[Heard] = []
        for (number, place), (request, events) in ended.items():
            tree = self.trees[number]
            tree.acting.discard(place)
            branch = tree.branches[place]
            if not branch.episode.lost(events):
                branch.entropy.append(turn_entropy(events, self.scene.texts.num_tokens))
                playing[number, place] = branch
                heard.append(Heard(request, [event._replace(top=()) for event in events]))
        games = [branch.episode for branch in playing.values()]
        answers = act(games, heard, self.scene)
        for (number, place), game, answer in zip(playing, games, answers, strict=True):
            start = self.part.go_on(game, answer, self.scene, **self.asked)
            if start is not None:
                self.trees[number].ready[place] = start

    def _round(self, number: int, tree: TurnTree) -> dict[int, Start]:
        """The next turns of a tree whose actions are all done, with those of new rollouts."""
        starts, before = dict(sorted(tree.ready.items())), len(tree.branches)
        tree.ready = {}
        for place, start in list(starts.items()):
            for _ in range(self.tries):
                if tree.left and self.forks(tree, tree.branches[place]):
                    starts |= [self._fork(tree, place, start)]
        if not starts and tree.left:
            starts |= [self._begin(number, tree)]
        tree.streak = tree.streak + 1 if len(tree.branches) > before else 0
        tree.acting = set(starts)
        return starts

    def _fork(self, tree: TurnTree, parent: int, start: Start) -> tuple[int, Start]:
        """A rollout that goes on from where another one is: its place and its next turn."""
        seed, origin = next(tree.seeds), tree.branches[parent].episode
        turn = len(origin.seat.turns) - 1
        episode = origin.branched(origin.repeated(self.scene.world, turn), seed, turn)
        place = tree.add(Branch(episode, parent, episode.seat.used))
        return place, seeded(start, seed)
