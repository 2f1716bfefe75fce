"""Environments with a question, tools and a final answer."""

import re
from typing import Any

from strop.data.tool_calls import Action, Call, read_action
from strop.environments.base import Environment, Observation
from strop.environments.tools import OK, OVER_LIMIT, Tool, ToolAnswer, answer_call, tools_of
from strop.rewards.answers import extract_answer
from strop.support.errors import UserError
from strop.support.exits import Exit

ANSWER = re.compile(r"\A\s*(final )?answer\s*:", re.IGNORECASE)


class ToolEnvironment(Environment):
    """An episode is a question, calls of tools, and an answer, which gets a verdict.

    Derive from it, and write `tools()`, `question(seed)` and `judge(answer)`. The calls of an
    action are made in order, and the policy reads the tools' answers; an action without calls is
    the final answer. A call that cannot be made is answered with an error and counts as not
    understood (`valid`); the policy may continue.
    """

    max_turns, max_tokens = 8, 512
    reward_range = (0.0, 1.0)
    max_calls: int = 16  # of an episode; further ones are answered with an error
    call_seconds: float = 10.0  # time limit of a call
    most_characters: int = 4000  # of a tool's answer; the rest is cut
    call_form: str = "text"  # for actions whose calls are not parsed yet; strop parses a model's
    ends_at: tuple[str, ...] = ()  # statuses of calls that end the episode with the exit tool_error

    _calls_left = 0
    _tools: tuple[Tool, ...] | None = None

    def question(self, seed: int) -> str:
        """Begin the episode of a seed and return the text of its question."""
        raise UserError(f"environment {type(self).__name__} has no method question(seed): add it")

    def judge(self, answer: str) -> float:
        """The reward of a final answer."""
        raise UserError(f"environment {type(self).__name__} has no method judge(answer): add it")

    def final_answer(self, text: str) -> str:
        """The answer in an action without calls: the last <answer> or boxed value, or else its last
        line, without a leading `Answer:`.
        """
        return ANSWER.sub("", extract_answer(text)).strip()

    def reset(self, seed: int) -> Observation:
        """Begin the episode of a seed."""
        self._calls_left = self.max_calls
        return Observation(self.question(seed))

    def step(self, action: str) -> Observation:
        """Make the calls of an action, or judge the answer."""
        read = action if isinstance(action, Action) else read_action(action, self.call_form)
        if not read.calls:
            answer = self.final_answer(read.content)
            if not answer:
                return Observation("Call a tool or give an answer.\n", valid=False)
            return Observation("", reward=float(self.judge(answer)), done=True)
        answers = tuple(self._answered(call) for call in read.calls)
        text = "".join(f"result: {each.text}\n" for each in answers)
        valid = all(each.status == OK for each in answers)
        if any(each.status in self.ends_at for each in answers):
            return Observation(text, done=True, valid=False, exit=Exit.TOOL_ERROR, answers=answers)
        return Observation(text, valid=valid, answers=answers)

    def calls(self, action: str) -> list[Call]:
        """The calls that an action makes."""
        read = action if isinstance(action, Action) else read_action(action, self.call_form)
        return read.readable_calls

    def _answered(self, call: Any) -> ToolAnswer:
        if self._calls_left <= 0:
            text = f"error: an episode has {self.max_calls} calls; give the answer"
            return ToolAnswer(call.name, call.arguments, OVER_LIMIT, text)
        self._calls_left -= 1
        if self._tools is None:
            self._tools = tools_of(self.tools())
        return answer_call(call, self._tools, self.call_seconds, self.most_characters)


def plain(text: str) -> str:
    """Normalise an answer for comparison: its case, its spaces and a full stop do not matter."""
    return " ".join(text.lower().rstrip(".").split())
