"""Prompts and answers of a run: rows, texts and tokens, and the limits of their lengths.

The limits are resolved once, before a run starts. Users set them under other names:
`rollout.max_tokens` and the fields of a rollout part, `data.max_prompt_tokens`, an environment's
`max_tokens` and `max_turns`, the model's context. All code of a run reads them from here.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch

from strop.batch.batch import Batch
from strop.data.chat import PLAIN, Chat
from strop.data.encode import encode_prompt, encode_reworded
from strop.data.given_answers import encode_answer
from strop.data.prompt_rows import PromptRows
from strop.data.prompts import MAX_SPLIT_ROWS, Prompt
from strop.environments.tasks import Task
from strop.method.schedule import Schedule
from strop.support.errors import UserError
from strop.support.unknown_characters import check_characters, unknown_characters
from strop.traces.records import Rollout
from strop.training.services.bounds import Bounds


class TooLong(UserError):
    """A row of the data is too long."""


@dataclass(frozen=True)
class Limits:
    """Most tokens of an answer, an episode, a prompt and a sequence.

    answer_tokens: new tokens of an answer or, in episodes, of an action. episode_tokens: those of
    all actions of an episode together or, without episodes, of an answer. prompt_tokens: those of a
    prompt. context_tokens: those of a sequence. kept_tokens: the share of them that no prompt may
    use.
    """

    answer_tokens: int
    episode_tokens: int
    prompt_tokens: int
    context_tokens: int
    kept_tokens: int

    @property
    def room(self) -> int:
        """The tokens that the context leaves for a prompt, whatever the settings say."""
        return self.context_tokens - self.kept_tokens

    def check_prompt(self, prompt: Prompt, size: int) -> None:
        """Raise TooLong for a prompt of more tokens than fit."""
        if size <= self.prompt_tokens:
            return
        remedy = "raise data.max_prompt_tokens"
        if self.prompt_tokens >= self.room:
            remedy = f"context {self.context_tokens} minus max_tokens {self.kept_tokens}: "
            remedy += _lower(self.context_tokens - size)
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

    max_prompt_tokens: 0 means as many as the context leaves. longest_given: tokens of the longest
    answer in the data, where answers are read from them; None: answers are sampled, and the context
    keeps room for a whole one after every prompt.
    """
    answer, episode = new_tokens(rollout, task, longest_given)
    kept = episode if longest_given is None else 1
    room = context_tokens - kept
    if room < 1:
        raise UserError(
            f"a context of {context_tokens} tokens leaves no prompt beside max_tokens={kept}: "
            + _lower(context_tokens // 2)
            + (", of all actions of an episode together" if answer != episode else "")
        )
    return Limits(answer, episode, min(max_prompt_tokens or room, room), context_tokens, kept)


def _lower(room: int) -> str:
    """The advice with which an answer, or all actions of an episode, fit into the room."""
    return f"set rollout.max_tokens={room}" if room > 0 else "lower rollout.max_tokens"


def new_tokens(rollout: Any, task: Task, longest_given: int | None = None) -> tuple[int, int]:
    """Most new tokens of an answer or action, and of an answer or episode. Raises UserError."""
    for name in ("max_tokens", "max_turns", "max_action_tokens", "extension"):
        if isinstance(getattr(rollout, name, 0), Schedule):
            raise UserError(f"rollout.{name} is one number for a whole run: it takes no schedule")
    usual = longest_given or task.max_tokens
    if task.environment is None:
        return rollout.new_tokens(usual, None)
    with task.environment.opened() as environment:
        return rollout.new_tokens(usual, environment)


K = TypeVar("K")
V = TypeVar("V")
MOST_PROMPTS = 2**16  # drawn prompts that are cached as rows
MOST_TOKENS = 2**21  # tokens of prompts that are cached


class Lately(Generic[K, V]):
    """A cache by key; all values are discarded when their total size would exceed `most`.

    So a long run does not fill the memory with values that it used once.
    """

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self.values: dict[K, V] = {}

    def get(self, key: K, make: Callable[[], V], size: Callable[[V], int]) -> V:
        """Returns the value of a key; makes it when it is not cached."""
        if key in self.values:
            return self.values[key]
        value = make()
        new = size(value)
        if self.held + new > self.most:
            self.clear()
        self.held += new
        self.values[key] = value
        return value

    def clear(self) -> None:
        """Discard all values."""
        self.values.clear()
        self.held = 0


@dataclass
class RunTexts:
    """The task's prompts under a tokenizer. Prompts are tokenised when they are requested.

    end_ids: the tokens appended to a given answer that does not end in one of `stop_ids` itself.
    chat: how the tokenizer's template is used.
    """

    task: Task
    tokenizer: Any
    limits: Limits
    end_ids: tuple[int, ...] = ()
    chat: Chat = PLAIN
    posted: Callable[[int], Prompt] | None = None  # the prompt of a posted task, by its uid
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.bounds = Bounds(self.tokenizer, self.chat.template)
        splits = self.task.splits.values()
        self._packed = [split for split in splits if isinstance(split, PromptRows)]
        lists = [split for split in splits if not isinstance(split, PromptRows)]
        self._listed = {prompt.uid: prompt for split in reversed(lists) for prompt in split}
        self._prompts = Lately[int, Prompt](MOST_PROMPTS)
        self._encoded = Lately[int, tuple[int, ...]](MOST_TOKENS)
        self._values: dict[str, tuple[Sequence[int], list[Any]]] = {}  # by column

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the tokenizer knows."""
        return len(self.tokenizer)

    @property
    def special_ids(self) -> frozenset[int]:
        """The tokenizer's special tokens, which are no text."""
        return frozenset(self.tokenizer.all_special_ids)

    @property
    def mixture(self) -> Sequence[tuple[str, int, float]]:
        """The sources of the training prompts: name, the uid after the last one, weight."""
        return self.task.origins

    @property
    def is_chat(self) -> bool:
        """Returns whether prompts are formatted with a chat template."""
        return self.chat.speaks(self.tokenizer)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, without added special tokens."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()

    def first_known(self, words: Sequence[str], option: str) -> str:
        """The first of these words that the tokenizer can write. Raises UserError for none."""
        bare = [re.sub(r"\{\w+\}", "", each) for each in words]
        for each, text in zip(words, bare, strict=True):
            if not unknown_characters(self.tokenizer, text):
                return each
        check_characters(self.tokenizer, bare[-1], f"what {option} says", f"{option}=...")
        raise AssertionError("unknown letters are refused")

    def decode(self, ids: Sequence[int], special: bool = True) -> str:
        """The text of token ids; special: include special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=not special))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token; joined they are the text of all.

        A character that consists of several tokens belongs to the last of them.
        """
        ids = [int(token) for token in ids]
        alone = {token: self.decode([token]) for token in set(ids)}
        found = [alone[token] for token in ids]
        if "".join(found) == self.decode(ids):
            return found
        # Decoding starts at `started`; tokens before `done` have their text.
        found, started, done = [], 0, 0
        for end in range(1, len(ids) + 1):
            before, now = self.decode(ids[started:done]), self.decode(ids[started:end])
            # a character has at most four bytes, so at most four tokens
            whole = not now.endswith("\ufffd") or end == len(ids) or end - done == 4
            found.append(now[len(before) :] if whole else "")
            if whole:
                started, done = done, end
        return found

    def prompt(self, uid: int) -> Prompt:
        """The prompt of a uid. Raises KeyError where there is none."""
        return self._prompts.get(uid, lambda: self._found(uid), lambda prompt: 1)

    def _found(self, uid: int) -> Prompt:
        if uid in self._listed:
            return self._listed[uid]
        if self.posted is not None and uid < MAX_SPLIT_ROWS:
            return self.posted(uid)
        for split in self._packed:
            if (at := split.place(uid)) is not None:
                return split[at]
        raise KeyError(uid)

    def row(self, uid: int) -> Mapping[str, Any]:
        """The columns of a prompt's row in the data."""
        return self.prompt(uid).columns

    def values(self, column: str, uids: Sequence[int]) -> Sequence[Any]:
        """A column of these prompts' rows, None where a row lacks it. For the same sequence, such
        as a run's pool, the data are read once.
        """
        before, values = self._values.get(column, ((), []))
        if before is not uids:
            values = [self._found(uid).columns.get(column) for uid in uids]
            self._values[column] = uids, values
        return values

    def limit_to(self, limits: Limits) -> None:
        """Use these limits from now on, for every prompt that is requested."""
        self.limits = limits
        self._encoded.clear()

    def prompt_ids(self, uid: int) -> tuple[int, ...]:
        """Token ids of a prompt. Raises UserError when it is too long or cannot be encoded."""
        return self._encoded.get(uid, lambda: self.first_ids(self.prompt(uid)), len)

    def first_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a sequence's prompt. Raises UserError as `prompt_ids` does."""
        ids = encode_prompt(prompt, self.tokenizer, self.chat.template)
        self.limits.check_prompt(prompt, len(ids))
        return tuple(ids)

    def prompt_text(self, uid: int) -> str:
        """A prompt as the model sees it: the chat template's text for messages."""
        prompt = self.prompt(uid).prompt
        return prompt if isinstance(prompt, str) else self.decode(self.prompt_ids(uid))

    def question(self, uid: int) -> str:
        """A prompt's own text, or that of its last message."""
        prompt = self.prompt(uid).prompt
        return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])

    def reworded_ids(self, uid: int, words: str, answer: Sequence[int]) -> tuple[int, ...]:
        """Token ids of a prompt reworded with an answer to it; empty where it has no room."""
        text = self.decode(answer, special=False)
        ids = encode_reworded(self.prompt(uid), words, text, self.tokenizer, self.chat.template)
        return tuple(ids) if len(ids) <= self.limits.prompt_tokens else ()

    def answer_ids(self, uid: int, column: str = "completion", end: bool = True) -> tuple[int, ...]:
        """Token ids of a given answer, a text or an assistant's message; end: with end tokens.

        Empty when the prompt's row has none. Raises UserError when the data have no such column,
        and for an answer that is no text or longer than an answer may be.
        """
        stops = {*self.stop_ids, *self.end_ids}
        template = self.chat.template
        ids = tuple(encode_answer(self.prompt(uid), column, self.tokenizer, template, stops))
        if not ids:
            return ()
        ids, ends = (ids[:-1], ids[-1:]) if ids[-1] in stops else (ids, self.end_ids)
        size, most = len(ids) + len(ends), self.limits.answer_tokens
        if size > most:
            raise TooLong(
                f"the {column} of {self.prompt(uid).name} is {size} tokens long, the limit is "
                f"{most}: raise rollout.max_tokens, shorten or remove it, or leave out all such "
                "rows with data.overlong=drop"
            )
        return (*ids, *ends) if end else ids

    def recorded(self, uid: int) -> tuple[Rollout, ...]:
        """The recorded rollouts of a prompt. Raises UserError where there are none."""
        if self.task.traces is None:
            raise UserError(
                f"{self.task.name} has no recorded rollouts: give some, data.task=traces:FILE"
            )
        return tuple(map(self.judged, self.task.traces.rollouts(uid)))

    def judged(self, rollout: Rollout) -> Rollout:
        """A recorded rollout; one without a reward gets 0 if reward functions score it."""
        if rollout.reward is not None or not self.task.rewards:
            return rollout
        return replace(rollout, reward=0.0)

    def decoded(self, batch: Batch) -> tuple[list[Any], list[str]]:
        """Prompts (as given) and decoded answers, one of each per rollout."""
        uids = batch["uid_P"][batch["group_B"]].tolist()
        ids = self.completion_ids(batch)
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True) if ids else []
        prompts = [self.prompt(uid).prompt for uid in uids]
        for rollout, text in self._other_openings(batch):
            prompts[rollout] = text
        return prompts, texts

    def _other_openings(self, batch: Batch) -> list[tuple[int, str]]:
        """Rollouts of players who did not begin their episode, with the first text they saw."""
        if "episode_B" not in batch:
            return []
        uid_B = batch["rollout_uid_B"]  # below 0: a demonstration
        others = ((batch["episode_B"] != uid_B) & (uid_B >= 0)).nonzero().squeeze(1)
        size_B = batch["size_B"]
        end_B = size_B.cumsum(0)
        found = []
        for rollout in others.tolist():
            rows = slice(int(end_B[rollout] - size_B[rollout]), int(end_B[rollout]))
            shown_T = batch["mask_T"][rows].cumsum(0) == 0
            ids = batch["id_T"][rows][shown_T].tolist()
            found.append((rollout, self.decode(ids, special=False)))
        return found

    def completion_ids(self, batch: Batch) -> list[list[int]]:
        """Token ids that the policy generated, per rollout."""
        mask_T = batch["mask_T"]
        if batch.size("B") == 0:
            return []
        flat = batch["id_T"][mask_T].cpu()
        return [piece.tolist() for piece in torch.split(flat, batch["length_B"].tolist())]
