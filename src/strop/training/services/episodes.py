"""Episodes of the task's environment: their tokens, texts and rewards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.data.chat import Chat
from strop.data.encode import encode_prompt
from strop.data.observation_tokens import known_ids, messages_of, observation_ids
from strop.data.prompts import Prompt
from strop.data.tool_calls import Call, read_action, read_call, thought_of
from strop.environments.base import EnvironmentSource, Observation
from strop.environments.episodes import CallLimits, Episodes
from strop.environments.tools import ToolAnswer
from strop.environments.workers import BroadcastEpisodes, EnvironmentWorkers
from strop.method.services import Graded
from strop.support.errors import UserError
from strop.support.exits import Exit
from strop.training.services.texts import MOST_TOKENS, Lately, RunTexts

OPENING = -2  # stands for the last token where the text opens a sequence


@dataclass
class RunEpisodes:
    """The environment, if the task has one, and the tokens of its observations."""

    environment: EnvironmentSource | None
    texts: RunTexts
    limits: CallLimits = field(default_factory=CallLimits)
    workers: EnvironmentWorkers | None = None  # where they are played, if not in this process
    # `Ranks.from_first`, where there are several processes and the first one plays for all.
    first: Callable[[Callable[[], Any]], Any] | None = None

    def __post_init__(self) -> None:
        self.are_played = self.environment is not None
        self._observed = Lately[tuple[str, int], tuple[int, ...]](MOST_TOKENS)

    def begin_episodes(self, uids: Sequence[int]) -> Any:
        """Start one episode of the task's environment per uid: `Episodes` or a substitute."""
        assert self.environment is not None, "the configuration refuses such a rollout"
        seeds = [self.texts.row(uid)["seed"] for uid in uids]
        source, limits, workers = self.environment, self.limits, self.workers

        def play() -> Any:
            return (
                Episodes(source, seeds, limits=limits) if workers is None else workers.play(seeds)
            )

        return play() if self.first is None else BroadcastEpisodes(self.first, play)

    def close(self) -> None:
        """End the processes that play episodes, if any."""
        if self.workers is not None:
            self.workers.close()

    def observation_ids(
        self, text: str, last: int, answers: tuple[ToolAnswer, ...] = (),
        so_far: Sequence[int] = (), num_new: int = 0,
    ) -> tuple[int, ...]:  # fmt: skip
        """Tokens that show an observation after an action whose last token is `last`; in a chat
        they show the tools' answers, if any. so_far: the sequence, where it is known, with the
        action's tokens as its last num_new.
        """
        is_chat = self.texts.is_chat
        tokenizer, template = self.texts.tokenizer, self.texts.chat.template
        messages = self._answers(answers)
        if self.texts.chat.reader is not None and num_new:
            prompt, action = so_far[:-num_new], so_far[-num_new:]
            return self.texts.chat.reader.between(prompt, action, messages_of(text, messages))
        shown = "\0".join((text, *(f"{each.name}\0{each.text}" for each in answers)))
        return self._observed.get(
            (shown, last if is_chat else -1),
            lambda: observation_ids(tokenizer, text, is_chat, last, template, messages),
            len,
        )

    def _answers(self, answers: Sequence[ToolAnswer]) -> list[dict[str, Any]]:
        """Messages of the role `tool`, if the template shows such messages."""
        return [each.message for each in answers] if self.texts.chat.as_tool else []

    @property
    def drops_thoughts(self) -> bool:
        """Whether a turn sees only those thoughts of earlier turns that the chat template shows."""
        return self.texts.chat.thinking == "template" and self.texts.is_chat

    def rewritten_ids(
        self, shown: Sequence[Observation], actions: Sequence[str], newest: int
    ) -> tuple[int, ...]:
        """Tokens of the conversation of these observations and actions, where the chat template
        leaves out thoughts of actions from `newest` on; empty where it shows all.

        Raises UserError where the conversation cannot be encoded.
        """
        thoughts = [thought for each in actions[newest:] if (thought := thought_of(each))]
        if not thoughts:
            return ()
        tokenizer, template = self.texts.tokenizer, self.texts.chat.template
        first = self._opening(shown[0].text).prompt
        assert isinstance(first, list), "the template shows messages"
        messages = [*first]
        for action, observation in zip(actions, shown[1:], strict=True):
            messages.append({"role": "assistant", "content": str(action)})
            messages += messages_of(observation.text, self._answers(observation.answers))
        text = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **template
        )
        if all(thought in text for thought in thoughts):
            return ()
        return tuple(encode_prompt(Prompt(-1, messages, {}), tokenizer, template))

    def context_ids(self, text: str) -> tuple[int, ...]:
        """Tokens of a text that is a whole context, however long.

        Raises UserError when it cannot be encoded.
        """
        texts = self.texts
        return tuple(encode_prompt(self._opening(text), texts.tokenizer, texts.chat.template))

    def opening_ids(self, text: str) -> tuple[int, ...]:
        """Tokens of the first text that is shown to a player who does not begin the episode.

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
        tokenizer, chat = self.texts.tokenizer, self.texts.chat
        if chat.reader is not None:
            return [chat.reader.read(each, self._whole(each)) for each in ids]
        if chat.tools:
            return [read_action(self._whole(each), chat.call_form, chat.tools) for each in ids]
        return tokenizer.batch_decode(ids, skip_special_tokens=True)

    def _whole(self, ids: Sequence[int]) -> str:
        """An action's text with the special tokens that calls contain, without its end tokens."""
        special, kept = self.texts.special_ids, list(ids)
        while kept and kept[-1] in special:
            kept.pop()
        return self.texts.decode(kept)

    def tool_calls(self, actions: Sequence[str]) -> list[list[Call]]:
        """The tool calls that each action makes."""
        assert self.environment is not None
        with self.environment.opened() as reader:
            return [reader.calls(action) for action in actions]

    def read_calls(self, given: Sequence[object]) -> list[Call]:
        """Calls from JSON objects or their texts."""
        return [read_call(each) for each in given]


def opening(prompt: Prompt, tokenizer: Any, chat: Chat) -> Prompt:
    """Format the first observation of an environment as a prompt for the model.

    Raises UserError for text with characters that the tokenizer does not know.
    """
    text = chat.tools_text + str(prompt.prompt)
    if not chat.speaks(tokenizer):
        known_ids(tokenizer, text)
        return replace(prompt, prompt=text)
    messages = [{"role": "user", "content": text.strip()}]
    return chat.put(replace(prompt, prompt=messages), tokenizer)


def _by_role(batch: Batch, sum_B: Tensor) -> dict[str, float]:
    """The mean reward of each role, where there is more than one."""
    if "role_B" not in batch or not bool(batch["role_B"].any()):
        return {}
    role_B = batch["role_B"]
    return {f"episode/reward_role_{role}": float(sum_B[role_B == role].double().mean())
            for role in role_B.unique().tolist()}  # fmt: skip


def with_episodes(batch: Batch, verified: Graded | None) -> Graded:
    """Rewards with those of the episodes: their sum per rollout comes first, with weight 1."""
    if "reward_K" not in batch:
        raise UserError(
            "a part has answers graded that were not played in the environment (no reward_K): take "
            "a task that answers once, or leave that part out (skywork_ssb: filter_answers=0)"
        )
    num = batch.size("B")
    rollout_K, valid_K = batch["rollout_K"], batch["valid_K"]
    sum_B = segments.total(batch["reward_K"].double(), rollout_K, num).float()
    done_B = segments.count(rollout_K, num, batch["done_K"]) > 0
    metrics = {}
    if num:
        metrics = {
            "episode/turns_mean": batch.size("K") / num,
            "episode/turns_max": float(batch["index_K"].max()) + 1,
            "episode/tokens_mean": batch.size("T") / num,
            "episode/truncated_fraction": float(batch["truncated_B"].double().mean()),
            "episode/invalid_fraction": 1 - float(valid_K.double().mean()),
            "episode/done_fraction": float(done_B.double().mean()),
            **_by_role(batch, sum_B),
        }
    if verified is None:
        all_B = torch.ones(num, dtype=torch.bool)
        return Graded(sum_B[:, None], sum_B, all_B, metrics, torch.zeros_like(batch["group_B"]))
    # Where no function applies the episode's own reward is the score.
    scored_B = verified.scored_B | (verified.exit_B == Exit.DONE)
    return Graded(
        torch.cat([sum_B[:, None], verified.reward_BM], dim=1),
        torch.where(scored_B, sum_B + verified.outcome_B, 0.0),
        scored_B,
        {**metrics, **verified.metrics},
        verified.exit_B,
    )
