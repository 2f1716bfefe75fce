"""The causes for which an answer or an episode ends, or has no score: one list for all rooms.

Environments, engines and rewards report one of them, `exit_B` holds its number, and the metric
`exit/NAME` is the share of answers with that cause. Causes that the policy can bring about count,
because otherwise it could learn to cause them. With any other cause the answer is unscored.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """A cause. The numbers never change, because recorded rollouts contain them."""

    DONE = 0  # it has the score that it was given
    TURN_LIMIT = 1  # the episode was cut at its turn limit
    TOKEN_LIMIT = 2  # the answer or episode was cut at its token limit
    TOOL_ERROR = 3  # a tool refused a call
    # A failure of the answer's own: other answers passed in the same place.
    TIMEOUT = 4  # the reward or the environment took too long on it
    EXCEPTION = 5  # the reward raised an exception on it
    CRASH = 6  # the process that judged it ended on it
    UNREADABLE = 7  # its judgement is no score, or it could not be read
    # Causes that are not the policy's.
    ENVIRONMENT_CRASH = 8  # the environment raised an exception or ended
    UNREACHABLE = 9  # a server did not answer, was over its quota or refused the key
    START_FAILED = 10  # a process or sandbox would not start
    ENGINE_LOST = 11  # a request to the engine failed
    REWARD_BUG = 12  # the reward fails on the reference answer, or on every answer
    NOT_TRIED = 13  # too many answers before it ended or blocked a process
    DECLARED = 14  # the reward function itself declared that it has no score
    PENDING = 15  # it has not ended: it continues in the next step

    @property
    def label(self) -> str:
        """The cause's name in metrics, reports and messages."""
        return self.name.lower()

    @property
    def is_policys(self) -> bool:
        """Whether the policy can be the cause."""
        return self < OUTSIDE

    def leaves_unscored(self, on_failure: float | str) -> bool:
        """Whether an answer with this cause never has a score, under `reward.on_failure`."""
        if self is Exit.PENDING:
            return False
        return self >= OUTSIDE or (self >= FAILED and on_failure == "unscored")


FAILED = Exit.TIMEOUT  # the first cause that is a failure
OUTSIDE = Exit.ENVIRONMENT_CRASH  # the first cause that cannot be the policy's
METRIC = "exit/"  # followed by the cause's label: share of answers


def causes(metrics: Mapping[str, Any]) -> dict[Exit, float]:
    """The shares among a step's metrics, by cause."""
    named = {METRIC + cause.label: cause for cause in Exit}
    return {named[name]: share for name, share in metrics.items() if name in named and share}
