"""Why an answer or an episode ended, or has no score of its own: one list of causes for all.

Environments, engines and rewards say one of them, `exit_B` holds its number, and the metric
`exit/NAME` is the share of answers that ended so. What the policy can have brought about counts; it
could learn to bring about what does not. What it cannot have brought about is unscored.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """A cause; a number stays what it is, for recorded rollouts have it."""

    DONE = 0  # it has the score that it was given
    TURN_LIMIT = 1  # the episode was cut at its most turns
    TOKEN_LIMIT = 2  # the answer or episode was cut at its most tokens
    TOOL_ERROR = 3  # a tool refused what it was asked
    # A failure of the answer's own: the same was well with other answers.
    TIMEOUT = 4  # the reward or the environment took too long on it
    EXCEPTION = 5  # the reward raised an exception on it
    CRASH = 6  # the process that judged it ended on it
    UNREADABLE = 7  # what was said of it is no score, or it could not be read
    # None of the policy's.
    ENVIRONMENT_CRASH = 8  # the environment raised an exception or ended
    UNREACHABLE = 9  # a server did not answer, was over its quota or refused the key
    START_FAILED = 10  # a process or sandbox would not start
    ENGINE_LOST = 11  # a request to the engine failed
    REWARD_BUG = 12  # the reward fails on the reference answer, or on whatever it is given
    NOT_TRIED = 13  # too many answers before it took a process with them
    DECLARED = 14  # the reward function itself said that it has no score
    PENDING = 15  # it has not ended: it goes on in the next step

    @property
    def label(self) -> str:
        """Its name in metrics, reports and messages."""
        return self.name.lower()

    @property
    def is_policys(self) -> bool:
        """Whether the policy can have brought it about."""
        return self < OUTSIDE

    def leaves_unscored(self, on_failure: float | str) -> bool:
        """Whether an answer with this cause never has a score, under `reward.on_failure`."""
        if self is Exit.PENDING:
            return False
        return self >= OUTSIDE or (self >= FAILED and on_failure == "unscored")


FAILED = Exit.TIMEOUT  # the first that is a failure
OUTSIDE = Exit.ENVIRONMENT_CRASH  # the first that the policy cannot have brought about
METRIC = "exit/"  # and the cause's label: share of answers


def causes(metrics: Mapping[str, Any]) -> dict[Exit, float]:
    """The shares among a step's metrics, by cause."""
    named = {METRIC + cause.label: cause for cause in Exit}
    return {named[name]: share for name, share in metrics.items() if name in named and share}
