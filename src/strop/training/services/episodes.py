"""Episodes of the task's environment, in tokens and in texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strop.rollout._observation_tokens import observation_ids
from strop.tasks.encode import encode_prompt
from strop.tasks.environment import EnvironmentSource, Episodes
from strop.tasks.task import Prompt
from strop.tasks.tool_calls import Call, read_call
from strop.training.rows import opening
from strop.training.services.lately import Lately
from strop.training.services.texts import MOST_TOKENS, RunTexts

OPENING = -2  # in place of a last token: the text opens a sequence


@dataclass
class RunEpisodes:
    """The environment, if the task has one, and the tokens of what it says."""

    environment: EnvironmentSource | None
    texts: RunTexts
    stage: Any = None  # where they are played, if that is elsewhere

    def __post_init__(self) -> None:
        self._observed = Lately[tuple[str, int], tuple[int, ...]](MOST_TOKENS)

    def begin_episodes(self, uids: Sequence[int]) -> Any:
        """One episode of the task's environment per uid: `Episodes`, or what stands for them."""
        assert self.environment is not None, "the configuration refuses such a rollout"
        seeds = [self.texts.row(uid)["seed"] for uid in uids]
        play = Episodes if self.stage is None else self.stage.play
        return play(self.environment, seeds)

    def close(self) -> None:
        """End what plays them elsewhere."""
        if self.stage is not None:
            self.stage.close()

    def observation_ids(self, text: str, last: int) -> tuple[int, ...]:
        """Tokens that show an observation after an action whose last token is `last`."""
        is_chat = self.texts.is_chat
        tokenizer, template = self.texts.tokenizer, self.texts.chat.template

        def made() -> tuple[int, ...]:
            return observation_ids(tokenizer, text, is_chat, last, template)

        return self._observed.get((text, last if is_chat else -1), made, len)

    def context_ids(self, text: str) -> tuple[int, ...]:
        """Tokens of a text that is a whole context, however long.

        Raises UserError when it cannot be encoded.
        """
        texts = self.texts
        return tuple(encode_prompt(self._opening(text), texts.tokenizer, texts.chat.template))

    def opening_ids(self, text: str) -> tuple[int, ...]:
        """Tokens of the first text that a player sees who does not begin the episode.

        Raises UserError when it is too long or cannot be encoded.
        """
        texts = self.texts
        return self._observed.get(
            (text, OPENING), lambda: texts.first_ids(self._opening(text)), len
        )

    def _opening(self, text: str) -> Prompt:
        return opening(Prompt(-1, text, {}), self.texts.tokenizer, self.texts.chat)

    def action_texts(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Actions as the environment reads them."""
        texts: list[str] = self.texts.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return texts

    def tool_calls(self, actions: Sequence[str]) -> list[list[Call]]:
        """The tool calls that each action makes."""
        assert self.environment is not None
        with self.environment.opened() as reader:
            return [reader.calls(action) for action in actions]

    def read_calls(self, given: Sequence[Any]) -> list[Call]:
        """Calls from JSON objects or their texts."""
        return [read_call(each) for each in given]
