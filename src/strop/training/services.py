"""What parts may ask for: prompts as token ids, texts, grades; batched and counted."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.batch import Batch
from strop.errors import UserError
from strop.rollout import drive
from strop.rollout._observation_tokens import known_ids, observation_ids
from strop.rollout.engines.base import Engine, Finished, Request
from strop.tasks.encode import answer_text, encode_prompt, encode_reworded
from strop.tasks.environment import Episodes
from strop.tasks.grader import Failure, Grader, weighted_sum
from strop.tasks.task import Prompt, RewardSpec, Task
from strop.tasks.tool_calls import Call, read_call
from strop.training.graded import Graded, with_episodes
from strop.training.rollout_gradients import gradient_norms

OPENING = -2  # in place of a last token: the text opens a sequence
ENVIRONMENT = "environment"  # name of the reward that the episodes themselves give


class NoGrader:
    """Stands where no reward function was given: the environment's rewards are all there is."""

    specs: tuple[RewardSpec, ...] = ()

    def close(self) -> None:
        """Nothing to end."""


@dataclass
class Services:
    """Prompts, tokenizer and grader of a run.

    max_tokens: most new tokens of an answer, or of an episode's actions together. context: most
    tokens of a sequence. stop_ids: tokens that end an answer. end_ids: the one that a given answer
    is made to end with. reserved: tokens kept free behind every prompt; 0: max_tokens. can_fork:
    the engine goes on from a request that has ended.
    """

    task: Task
    tokenizer: Any
    grader: Grader | NoGrader
    context: int
    max_tokens: int
    max_prompt_tokens: int | None = None
    stop_strings: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    end_ids: tuple[int, ...] = ()
    wanted_statistics: frozenset[str] = frozenset({"logp_model", "entropy"})
    policies: dict[str, Any] = field(default_factory=dict)  # "current", "ref", "critic"
    can_fork: bool = True
    engine: Engine | None = None
    reserved: int = 0
    tokens_sampled: int = 0  # that parts asked for in this step
    tokens_scored: int = 0
    step: int = 0
    failures: list[Failure] = field(default_factory=list)
    logged: dict[str, dict[int, Any]] = field(default_factory=dict)  # log_extra: column -> rollout
    _prompts: dict[int, Prompt] = field(default_factory=dict)
    _encoded: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _logged_at: int = 0  # step of what is in `logged`
    _observed: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        splits = (self.task.train, self.task.validation, self.task.heldout)
        self._prompts = {prompt.uid: prompt for prompt in itertools.chain(*splits)}

    @property
    def can_grade(self) -> bool:
        """Whether something scores answers: reward functions or the environment."""
        return self.task.environment is not None or not isinstance(self.grader, NoGrader)

    @property
    def reward_names(self) -> tuple[str, ...]:
        """Names of the rewards in the order of `reward_BM`: an environment's own comes first."""
        own = (ENVIRONMENT,) if self.task.environment is not None else ()
        return (*own, *(spec.name for spec in self.grader.specs))

    def attach(self, engine: Engine) -> None:
        """Sample with this engine, and ask it for what it can tell."""
        self.engine = engine
        self.can_fork = "fork" in engine.capabilities
        self.wanted_statistics &= engine.capabilities

    def begin_step(self, step: int) -> None:
        """Forget the failures of the step before; `step` is what rewards see as global_step."""
        self.step = step
        self.tokens_sampled = self.tokens_scored = 0
        self.failures.clear()

    def prompt(self, uid: int) -> Prompt:
        """The prompt of a uid."""
        return self._prompts[uid]

    def prompt_ids(self, uid: int) -> tuple[int, ...]:
        """Token ids of a prompt. Raises UserError when it is too long or cannot be encoded."""
        if uid not in self._encoded:
            ids = encode_prompt(
                self.prompt(uid),
                self.tokenizer,
                self.max_prompt_tokens,
                self.context,
                self.reserved or self.max_tokens,
            )
            self._encoded[uid] = tuple(ids)
        return self._encoded[uid]

    def reworded_ids(self, uid: int, words: str, answer: Sequence[int]) -> tuple[int, ...]:
        """Token ids of a prompt reworded with an answer to it; empty where it has no room."""
        room = self.context - (self.reserved or self.max_tokens)
        said = self.tokenizer.decode(list(answer), skip_special_tokens=True)
        ids = encode_reworded(self.prompt(uid), words, said, self.tokenizer)
        return tuple(ids) if len(ids) <= min(room, self.max_prompt_tokens or room) else ()

    def demonstration_ids(self, uid: int) -> tuple[int, ...]:
        """Token ids of the column `completion` of a prompt's row; see `answer_ids`."""
        return self.answer_ids(uid, "completion")

    def answer_ids(self, uid: int, column: str) -> tuple[int, ...]:
        """Token ids of a given answer, the end included: text, or one message of an assistant.

        Empty when the prompt's row has none. Raises UserError when the data have no such column,
        and for an answer that is no text or longer than an answer may be.
        """
        row = self.prompt(uid).columns
        if column not in row:
            raise UserError(
                f"the data have no column {column}: give --data FILE whose rows have a prompt and "
                f"a {column}"
            )
        if row[column] is None:
            return ()
        text = answer_text(row[column])
        if not text:
            raise UserError(
                f"the {column} of prompt {uid} must be text or one message of an assistant, it is "
                f"{row[column]!r}"
            )
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        answer = (*ids, *self.end_ids)
        if len(answer) > self.max_tokens:
            raise UserError(
                f"the {column} of prompt {uid} is {len(answer)} tokens long, the limit is "
                f"{self.max_tokens}: raise rollout.max_tokens, or shorten or remove it"
            )
        return answer

    def prompt_text(self, uid: int) -> str:
        """A prompt as the model sees it: the chat template's text for messages."""
        prompt = self.prompt(uid).prompt
        return prompt if isinstance(prompt, str) else self.tokenizer.decode(self.prompt_ids(uid))

    def texts(self, batch: Batch) -> tuple[list[Any], list[str]]:
        """Prompts (as given) and decoded completions, one of each per rollout."""
        uids = batch["uid_P"][batch["group_B"]].tolist()
        ids = self.completion_ids(batch)
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True) if ids else []
        prompts = [self.prompt(uid).prompt for uid in uids]
        for rollout, text in self._other_openings(batch):
            prompts[rollout] = text
        return prompts, texts

    def _other_openings(self, batch: Batch) -> list[tuple[int, str]]:
        """Rollouts of players who did not begin their episode, with what they saw first."""
        if "episode_B" not in batch:
            return []
        uid_B = batch["rollout_uid_B"]  # below 0: a demonstration
        others = ((batch["episode_B"] != uid_B) & (uid_B >= 0)).nonzero().squeeze(1)
        found = []
        for rollout in others.tolist():
            rows_T = batch["rollout_T"] == rollout
            shown_T = rows_T & (batch["mask_T"] & rows_T).cumsum(0).eq(0)
            text = self.tokenizer.decode(batch["id_T"][shown_T].tolist(), skip_special_tokens=True)
            found.append((rollout, text))
        return found

    def completion_ids(self, batch: Batch) -> list[list[int]]:
        """Token ids that the policy generated, per rollout."""
        mask_T = batch["mask_T"]
        if batch.size("B") == 0:
            return []
        flat = batch["id_T"][mask_T].cpu()
        return [piece.tolist() for piece in torch.split(flat, batch["length_B"].tolist())]

    # -- episodes ---------------------------------------------------------------------------

    def begin_episodes(self, uids: Sequence[int]) -> Episodes:
        """One episode of the task's environment per uid."""
        assert self.task.environment is not None, "the configuration refuses such a rollout"
        return Episodes(self.task.environment, [self.prompt(uid).columns["seed"] for uid in uids])

    def observation_ids(self, text: str, last: int) -> tuple[int, ...]:
        """Tokens that show an observation after an action whose last token is `last`."""
        is_chat = bool(getattr(self.tokenizer, "chat_template", None))
        key = (text, last if is_chat else -1)
        if key not in self._observed:
            self._observed[key] = observation_ids(self.tokenizer, text, is_chat, last)
        return self._observed[key]

    def opening_ids(self, text: str) -> tuple[int, ...]:
        """Tokens of the first text that a player sees who does not begin the episode.

        Raises UserError when it is too long or cannot be encoded.
        """
        key = (text, OPENING)
        if key not in self._observed:
            chat = bool(getattr(self.tokenizer, "chat_template", None))
            if not chat:
                known_ids(self.tokenizer, text)
            shown = [{"role": "user", "content": text.strip()}] if chat else text
            prompt = Prompt(-1, shown, {})
            limits = (self.max_prompt_tokens, self.context, self.reserved or self.max_tokens)
            self._observed[key] = tuple(encode_prompt(prompt, self.tokenizer, *limits))
        return self._observed[key]

    def action_texts(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Actions as the environment reads them."""
        texts: list[str] = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return texts

    def tool_calls(self, actions: Sequence[str]) -> list[list[Call]]:
        """The tool calls that each action makes."""
        assert self.task.environment is not None
        reader = self.task.environment.make()
        return [reader.calls(action) for action in actions]

    def read_calls(self, given: Sequence[Any]) -> list[Call]:
        """Calls from JSON objects or their texts."""
        return [read_call(each) for each in given]

    def keep_turns(self, said: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        """Keep what was shown and done in each turn, by rollout, for the table of rollouts."""
        self.log_rollouts("turns", said)

    def log_rollouts(self, name: str, values: Mapping[int, Any]) -> None:
        """Keep a column of the table of rollouts, by rollout, until the next step."""
        self._forget_older()
        self.logged.setdefault(name, {}).update(values)

    def check_rewards(self) -> None:
        """Call the reward functions once, on empty answers, so that a mistake shows before step 1.

        What they return must be one finite number or None each; an exception is left for the run,
        where it costs its rows. Raises UserError.
        """
        if isinstance(self.grader, NoGrader):
            return
        for split in (self.task.train, self.task.validation, self.task.heldout):
            prompts = split[:2]
            rows = [prompt.columns for prompt in prompts]
            columns = {name: [row.get(name) for row in rows] for name in _names(rows)}
            if prompts:
                self.grader.check(columns)
            if split is self.task.train:
                texts = [""] * len(prompts)
                self.grader.grade(
                    [p.prompt for p in prompts],
                    texts,
                    [()] * len(texts),
                    columns,
                    groups=range(len(texts)),
                    prompt_texts=[self.prompt_text(p.uid) for p in prompts],
                )

    def grade(self, batch: Batch) -> Graded:
        """Run the reward functions over the batch's texts, outside this process.

        Where episodes were played, their own rewards are the first component, with weight 1.
        """
        if self.task.environment is None:
            return self._verified(batch)
        return with_episodes(
            batch, None if isinstance(self.grader, NoGrader) else self._verified(batch)
        )

    def grade_beside(self, batch: Batch, opponents: Sequence[str]) -> Graded:
        """As `grade`, with another answer's text beside each: the reward's column `opponent`.

        Raises UserError where episodes are played or there is no reward function.
        """
        if self.task.environment is not None or isinstance(self.grader, NoGrader):
            raise UserError("answers are compared by a reward function: give --reward and prompts")
        return self._verified(batch, {"opponent": list(opponents)})

    def _verified(
        self, batch: Batch, more: Mapping[str, list[Any]] = MappingProxyType({})
    ) -> Graded:
        """What the reward functions give; `more`: columns in place of the data's."""
        assert isinstance(self.grader, Grader)
        uids = batch["uid_P"][batch["group_B"]].tolist()
        prompts, texts = self.texts(batch)
        rows = [self.prompt(uid).columns for uid in uids]
        columns = {name: [row.get(name) for row in rows] for name in _names(rows)} | dict(more)
        shown = {uid: self.prompt_text(uid) for uid in set(uids)}
        grades = self.grader.grade(
            prompts,
            texts,
            self.completion_ids(batch),
            columns,
            step=self.step,
            groups=batch["group_B"].tolist(),
            prompt_texts=[shown[uid] for uid in uids],
        )
        self.failures.extend(grades.failures)
        self._keep_logged(batch, grades.extra)
        weights = [spec.weight for spec in self.grader.specs]
        outcome = np.nan_to_num(weighted_sum(grades.scores_BM, weights))
        failed_B = torch.zeros(batch.size("B"), dtype=torch.bool)
        failed_B[[failure.row for failure in grades.failures]] = True
        return Graded(
            torch.tensor(grades.scores_BM, dtype=torch.float32),
            torch.tensor(np.where(grades.scored_B, outcome, 0.0), dtype=torch.float32),
            torch.tensor(grades.scored_B),
            dict(grades.metrics),
            failed_B,
        )

    def _forget_older(self) -> None:
        """Forget what was logged before this step."""
        if self._logged_at != self.step:
            self.logged, self._logged_at = {}, self.step

    def _keep_logged(self, batch: Batch, extra: Mapping[str, Sequence[Any]]) -> None:
        """Keep what rewards logged of each rollout until the next step."""
        self._forget_older()
        for name, values in extra.items():
            rollouts = batch["rollout_uid_B"].tolist()
            self.logged.setdefault(name, {}).update(zip(rollouts, values, strict=True))

    def reward(self, batch: Batch) -> Tensor:
        """Weighted outcome [B] of the batch's rollouts, 0 where none was given."""
        return self.grade(batch).outcome_B

    def request(self, ids: Sequence[int], max_tokens: int, seed: int, **changes: Any) -> Request:
        """A request to `sample` at the rollouts' temperature, with their ends; fields to change."""
        plain = Request(
            tuple(ids), max_tokens, self.policies["current"].temperature, seed=seed,
            stop_ids=self.stop_ids, stop_strings=self.stop_strings,
        )  # fmt: skip
        return replace(plain, **changes)

    def sample(self, requests: Sequence[Request]) -> list[Finished]:
        """Run requests on the rollouts' engine, with its weights of now; answers in their order."""
        assert self.engine is not None
        finished = drive.sample(self.engine, requests)
        self.tokens_sampled += sum(len(event.ids) for found in finished for event in found.events)
        return finished

    def embeddings(self) -> Tensor:
        """The current policy's input embeddings [V, width]."""
        return self.policies["current"].model.get_input_embeddings().weight.detach()

    @torch.no_grad()
    def hidden(self, batch: Batch) -> Iterator[tuple[list[int], tuple[Tensor, ...]]]:
        """Rollouts, and the current policy's last hidden states [tokens, width] of their tokens.

        One forward pass at a time, without gradient, so that only its states exist.
        """
        policy = self.policies["current"]
        batch = batch.to(policy.device)
        self.tokens_scored += batch.size("T")
        for index_B in policy.micro_batches(batch):
            micro = batch.take(index_B)
            states = torch.split(policy.around(micro)[1], micro["length_B"].tolist())
            yield index_B.tolist(), states

    def gradient_norms(self, batch: Batch) -> Tensor:
        """Norm [B] of the gradient of each rollout's summed log-probability, under the policy."""
        return gradient_norms(self.policies["current"], batch)

    def metrics(self) -> dict[str, float]:
        """What this step's parts cost beside the rollouts; empty where they asked for nothing."""
        spent = {
            "services/tokens_sampled": float(self.tokens_sampled),
            "services/tokens_scored": float(self.tokens_scored),
        }
        return {name: tokens for name, tokens in spent.items() if tokens}

    def score(self, batch: Batch, policy: str, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Columns of the batch under the policy "current" or "ref", or values of "critic".

        Raises UserError for one that the run does not have.
        """
        if policy not in self.policies:
            known = ", ".join(self.policies) or "none"
            raise UserError(f"no policy {policy!r} to score with; this run has {known}")
        self.tokens_scored += batch.size("T")
        return self.policies[policy].columns(batch, names)


def _names(rows: Sequence[Any]) -> list[str]:
    """Column names of the rows, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))
