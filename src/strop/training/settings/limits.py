"""How many tokens a run has room for, resolved once, before it starts.

What the user gives keeps its own name: `rollout.max_tokens` and the fields of a rollout part,
`data.max_prompt_tokens`, an environment's `max_tokens` and `max_turns`, the model's context.
Whatever runs reads the numbers from here.
"""

from dataclasses import dataclass
from typing import Any

from strop.environments.tasks import Prompt, Task
from strop.method.schedule import Schedule
from strop.support.errors import UserError


class TooLong(UserError):
    """A row of the data that has no room."""


@dataclass(frozen=True)
class Limits:
    """Most tokens of an answer, an episode, a prompt and a sequence.

    answer_tokens: new ones of an answer; where episodes are played, of an action. episode_tokens:
    of all actions of an episode together; where none are played, of an answer. prompt_tokens: of a
    prompt. context_tokens: of a sequence. kept_tokens: of these no prompt may take.
    """

    answer_tokens: int
    episode_tokens: int
    prompt_tokens: int
    context_tokens: int
    kept_tokens: int

    @property
    def room(self) -> int:
        """What the context leaves to a prompt, whatever the settings say."""
        return self.context_tokens - self.kept_tokens

    def check_prompt(self, prompt: Prompt, size: int) -> None:
        """Raise TooLong for a prompt of more tokens than fit."""
        if size <= self.prompt_tokens:
            return
        remedy = "raise data.max_prompt_tokens"
        if self.prompt_tokens >= self.room:
            remedy = f"context {self.context_tokens} minus max_tokens {self.kept_tokens}: lower "
            remedy += "rollout.max_tokens"
        raise TooLong(
            f"{prompt.name} is {size} tokens long, the limit is {self.prompt_tokens} ({remedy}, "
            "shorten or remove it, or leave out all such rows with data.overlong=drop)"
        )


def resolve(
    rollout: Any,
    task: Task,
    context_tokens: int,
    max_prompt_tokens: int = 0,
    longest_given: int | None = None,
) -> Limits:
    """The limits of a run with this rollout part. Raises UserError where no prompt would fit.

    max_prompt_tokens: 0: what the context leaves. longest_given: tokens of the longest answer that
    the data give, where answers are read from them; None: they are sampled. Then the context keeps
    room for a whole one behind every prompt.
    """
    answer, episode = new_tokens(rollout, task, longest_given)
    kept = episode if longest_given is None else 1
    room = context_tokens - kept
    if room < 1:
        raise UserError(
            f"a context of {context_tokens} tokens leaves no prompt beside max_tokens={kept}: "
            "lower rollout.max_tokens"
        )
    return Limits(answer, episode, min(max_prompt_tokens or room, room), context_tokens, kept)


def new_tokens(rollout: Any, task: Task, longest_given: int | None = None) -> tuple[int, int]:
    """Most new tokens of an answer or action, and of an answer or episode. Raises UserError."""
    for name in ("max_tokens", "max_turns", "max_action_tokens"):
        if isinstance(getattr(rollout, name, 0), Schedule):
            raise UserError(f"rollout.{name} is one number for a whole run: it takes no schedule")
    usual = longest_given or task.max_tokens
    found: tuple[int, int]
    if task.environment is None:
        found = rollout.new_tokens(usual, None)
        return found
    with task.environment.opened() as environment:
        found = rollout.new_tokens(usual, environment)
    return found
