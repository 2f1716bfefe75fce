"""Wraps an environment so that the policy may write more than its action.

docs/ENVIRONMENTS.md, "Turns that hold more than an action", has an example and the options.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from strop.data.tool_calls import Action, Call
from strop.environments.base import (
    JOINED,
    Environment,
    EnvironmentSource,
    Observation,
    check_number,
    source_of,
)
from strop.support.errors import UserError

INSTRUCTION = (
    "In every turn write whether you keep your subgoal, the subgoal, and one action, so: "
    "<switch>KEEP or SWITCH</switch><subgoal>...</subgoal><action>...</action>\n"
)


class ActionBlock(Environment):
    """Options: environment (a name as for data.task), options (its own), tags (text before and
    after the action), max_tokens (of a turn; 0: 64 more than the environment's), instruction (text
    before the first observation).

    A turn without the block is passed on whole and counts as not understood.
    """

    def __init__(
        self,
        environment: str = "corridor",
        options: Mapping[str, Any] | None = None,
        tags: Sequence[str] = ("<action>", "</action>"),
        max_tokens: int = 0,
        instruction: str = INSTRUCTION,
    ) -> None:
        check_number("action_block: max_tokens", max_tokens, 0)
        if len(tags) != 2 or not all(isinstance(tag, str) and tag for tag in tags):
            raise UserError(f"action_block: tags takes two texts, it is {tags!r}")
        self.inner = _inside(environment, options).make()
        self.opening, self.closing = tags
        self.instruction = instruction
        self.max_turns = self.inner.max_turns
        self.max_tokens = max_tokens or self.inner.max_tokens + 64
        self.reward_range = self.inner.reward_range
        self.roles, self.rewrites = self.inner.roles, self.inner.rewrites
        self._informed: set[int] = set()  # players who have seen the instruction

    @classmethod
    def played_as(cls, options: Mapping[str, Any]) -> type[Environment]:
        """The class whose step is awaited, where the inner environment's step is.

        Raises UserError where the inner environment steps many episodes at once.
        """
        inner = _inside(options.get("environment", "corridor"), options.get("options"))
        if inner.steps_all:
            raise UserError(
                f"action_block: {inner.name} steps many episodes at once, and has no step"
            )
        return AwaitedActionBlock if inner.is_asynchronous else cls

    def reset(self, seed: int) -> Observation:
        """Begin an episode of the inner environment."""
        self._informed = set()
        return self._instructed(self.inner.reset(seed))

    def step(self, action: str) -> Observation:
        """Pass the block to the inner environment."""
        return self._judged(self.inner.step(self._passed(action)), action)

    def close(self) -> None:
        """Close the inner environment."""
        self.inner.close()

    def columns(self) -> Mapping[str, Any]:
        """The columns of the inner environment."""
        return self.inner.columns()

    def num_episodes(self) -> Mapping[str, int] | None:
        """Those of the inner environment."""
        return self.inner.num_episodes()

    def tools(self) -> Sequence[Any]:
        """The tools of the inner environment, which a turn may call anywhere in its text."""
        return self.inner.tools()

    def calls(self, action: str) -> list[Call]:
        """The calls that the inner environment finds in the block."""
        return self.inner.calls(self._passed(action))

    def _instructed(self, shown: Observation) -> Observation:
        """The observation, with the instruction before a player's first one; anything that is no
        observation is returned unchanged.
        """
        if not isinstance(shown, Observation) or shown.done:
            return shown
        player = shown.role if len(self.roles) > 1 else 0
        if player in self._informed and not self.rewrites:
            return shown
        self._informed.add(player)
        return replace(shown, text=self.instruction + shown.text)

    def _passed(self, action: str) -> str:
        """The action for the inner environment: the block, with the calls that were parsed."""
        block = self._block(action)
        if block is None or not isinstance(action, Action):
            return action if block is None else block
        return Action.of(block, (self._block(action.content) or "").strip(), action.calls)

    def _judged(self, answer: Observation, action: str) -> Observation:
        """The answer to an action; without its block the action counts as not understood."""
        if not isinstance(answer, Observation):
            return answer
        answer = self._instructed(answer)
        return answer if self._block(action) is not None else replace(answer, valid=False)

    def _block(self, action: str) -> str | None:
        """The text between the first opening tag and the closing one after it."""
        _, opened, rest = action.partition(self.opening)
        block, closed, _ = rest.partition(self.closing)
        return block if opened and closed else None


class AwaitedActionBlock(ActionBlock):
    """The same wrapper for an environment whose step is awaited."""

    async def reset(self, seed: int) -> Observation:  # type: ignore[override]
        """Begin an episode of the inner environment."""
        self._informed = set()
        first: Any = self.inner.reset(seed)
        return self._instructed(await first if inspect.isawaitable(first) else first)

    async def step(self, action: str) -> Observation:  # type: ignore[override]
        """Pass the block to the inner environment."""
        answer: Any = self.inner.step(self._passed(action))
        return self._judged(await answer, action)


def _inside(environment: Any, options: Any) -> EnvironmentSource:
    """The environment inside. Raises UserError for a name or options that are none."""
    if not isinstance(environment, str) or not isinstance(options or {}, Mapping):
        raise UserError(
            "action_block: environment takes the name of an environment and options its options, "
            f"they are {environment!r} and {options!r}"
        )
    source = source_of(
        environment if JOINED in environment else f"environment:{environment}", options
    )
    assert source is not None, "other names are refused"
    return source
