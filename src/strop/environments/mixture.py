"""Several environments as one task: `data.task="corridor + easy=hidden_number"`.

A seed of the mixture selects an environment and a seed of its own: the seeds of k environments
alternate, k * seed + number. So each environment plays the same episodes as it does alone.
"""

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from strop.data.tool_calls import Call
from strop.environments.base import Environment, Observation, members_of
from strop.environments.tools import Tool, tools_of
from strop.support.errors import UserError


class Mixture(Environment):
    """Options: those of each environment, by its name: {"corridor": {"size": 3}}.

    An episode has the turn limit of the environment that plays it; the mixture's own limits and
    range of rewards are the widest of all.
    """

    def __init__(self, name: str, /, **options: Any) -> None:
        own = members_of(name, options).values()
        for each in own:
            if each.steps_all:
                raise UserError(
                    f"{each.name} steps many episodes at once and plays alone, not in {name}"
                )
        self.members = [each.make() for each in own]
        self.name, self.playing = name, self.members[0]
        facts: dict[str, list[Any]] = {
            "roles": [each.roles if len(each.roles) > 1 else () for each in self.members],
            "rewrites": [each.rewrites for each in self.members],
        }
        for fact, found in facts.items():
            if found.count(found[0]) < len(found):
                raise UserError(
                    f"the environments of {name} differ in their {fact} "
                    f"({', '.join(map(str, found))}): games mix with games of as many players"
                )
            setattr(self, fact, found[0])
        self.max_turns = max(each.max_turns for each in self.members)
        self.max_tokens = max(each.max_tokens for each in self.members)
        ranges = [each.reward_range for each in self.members]
        known = [each for each in ranges if each is not None]
        if len(known) == len(ranges):
            self.reward_range = (min(low for low, _ in known), max(high for _, high in known))

    def reset(self, seed: int) -> Observation:
        """Begin the episode of a seed in its environment."""
        return self._began(self._chosen(seed).reset(seed // len(self.members)))

    def step(self, action: str) -> Observation:
        """Pass the action to the environment that plays."""
        return self._limited(self.playing.step(action))

    def close(self) -> None:
        """Close all environments."""
        for each in self.members:
            each.close()

    def columns(self) -> Mapping[str, Any]:
        """The columns of the environment that plays."""
        return self.playing.columns()

    def tools(self) -> Sequence[Tool]:
        """The tools of all environments; equal ones of several count once. Raises UserError."""
        found = dict[str, Tool]()
        for tool in chain.from_iterable(tools_of(each.tools()) for each in self.members):
            if found.setdefault(tool.name, tool).schema != tool.schema:
                raise UserError(
                    f"the environments of {self.name} have different tools called {tool.name}: "
                    "give one of them another name"
                )
        return tuple(found.values())

    def calls(self, action: str) -> list[Call]:
        """The calls that the first environment to find any reads in an action."""
        found = (each.calls(action) for each in self.members)
        return next((calls for calls in found if calls), [])

    def _chosen(self, seed: int) -> Environment:
        self.playing = self.members[seed % len(self.members)]
        return self.playing

    def _began(self, shown: Observation) -> Observation:
        self.turns = Counter[int]()
        self.acting = self._next(shown)
        return shown

    def _next(self, shown: Observation) -> int:
        return shown.role if self.roles and isinstance(shown, Observation) else 0

    def _limited(self, shown: Observation) -> Observation:
        """The observation, truncated at the environment's own turn limit; anything that is no
        observation is returned unchanged.
        """
        self.turns[self.acting] += 1
        self.acting = self._next(shown)
        is_over = not isinstance(shown, Observation) or shown.done or shown.truncated
        if is_over or self.turns[self.acting] < self.playing.max_turns:
            return shown
        return replace(shown, text="", truncated=True)


class AwaitedMixture(Mixture):
    """A mixture of environments some of which are asynchronous."""

    async def reset(self, seed: int) -> Observation:  # type: ignore[override]
        """Begin the episode of a seed."""
        shown: Any = self._chosen(seed).reset(seed // len(self.members))
        return self._began(await shown if inspect.isawaitable(shown) else shown)

    async def step(self, action: str) -> Observation:  # type: ignore[override]
        """Pass the action to the environment that plays."""
        shown: Any = self.playing.step(action)
        return self._limited(await shown if inspect.isawaitable(shown) else shown)


def seed_of(number: int, seed: int, num: int) -> int:
    """The mixture's seed for a seed of the environment `number` of `num`."""
    return seed * num + number
