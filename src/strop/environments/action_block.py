"""An environment whose policy says more than its action: only the action's block reaches it.

`strop.environments.action_block:ActionBlock` plays another environment. A turn is written as

    <switch>SWITCH</switch><subgoal>reach the key</subgoal><action>right</action>

and the environment inside is given the text of the last block alone. What a method does with the
other blocks is its own business (the recipe `hiper_hae` credits each of them).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from strop.environments.base import Environment, EnvironmentSource, Observation, check_number
from strop.environments.tool_calls import Call
from strop.support.errors import UserError

INSTRUCTION = (
    "In every turn write whether you keep your subgoal, the subgoal, and one action, so: "
    "<switch>KEEP or SWITCH</switch><subgoal>...</subgoal><action>...</action>\n"
)


class ActionBlock(Environment):
    """Options: environment (a name as for data.task), options (its own), tags (text before and
    after the action), max_tokens (of a turn; 0: 64 more than the environment's), instruction (text
    before the first observation).

    A turn without the block is given whole and counts as not understood.
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
        self.inner = EnvironmentSource(environment, dict(options or {})).make()
        self.opening, self.closing = tags
        self.instruction = instruction
        self.max_turns = self.inner.max_turns
        self.max_tokens = max_tokens or self.inner.max_tokens + 64
        self.reward_range = self.inner.reward_range

    def reset(self, seed: int) -> Observation:
        """Begin the episode of the environment inside."""
        first = self.inner.reset(seed)
        return replace(first, text=self.instruction + first.text)

    def step(self, action: str) -> Observation:
        """Pass the block on."""
        block = self._block(action)
        answer = self.inner.step(action if block is None else block)
        return answer if block is not None else replace(answer, valid=False)

    def close(self) -> None:
        """Close the environment inside."""
        self.inner.close()

    def columns(self) -> Mapping[str, Any]:
        """Those of the environment inside."""
        return self.inner.columns()

    def calls(self, action: str) -> list[Call]:
        """Those that the environment inside finds in the block."""
        block = self._block(action)
        return self.inner.calls(action if block is None else block)

    def _block(self, action: str) -> str | None:
        """The text between the first opening tag and the closing one after it."""
        _, opened, rest = action.partition(self.opening)
        block, closed, _ = rest.partition(self.closing)
        return block if opened and closed else None
