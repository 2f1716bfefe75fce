"""What parts may ask for: prompts as token ids, texts, grades; batched and counted."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from strop.batch import Batch
from strop.errors import UserError
from strop.tasks.encode import encode_prompt
from strop.tasks.grader import Failure, Grader, weighted_sum
from strop.tasks.task import Prompt, Task


class Graded(NamedTuple):
    """Scores of a batch: components [B, M] (NaN: none), weighted sum [B], scored [B], metrics."""

    reward_BM: Tensor
    outcome_B: Tensor
    scored_B: Tensor
    metrics: dict[str, float]


@dataclass
class Services:
    """Prompts, tokenizer and grader of a run.

    max_tokens: most new tokens of an answer. context: most tokens of a sequence. stop_ids: tokens
    that end an answer.
    """

    task: Task
    tokenizer: Any
    grader: Grader
    context: int
    max_tokens: int
    max_prompt_tokens: int | None = None
    stop_strings: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    wanted_statistics: frozenset[str] = frozenset({"logp_model", "entropy"})
    policies: dict[str, Any] = field(default_factory=dict)  # "current", "ref" -> Policy
    step: int = 0
    failures: list[Failure] = field(default_factory=list)
    logged: dict[str, dict[int, Any]] = field(default_factory=dict)  # log_extra: column -> rollout
    _prompts: dict[int, Prompt] = field(default_factory=dict)
    _encoded: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _logged_at: int = 0  # step of what is in `logged`

    def __post_init__(self) -> None:
        splits = (self.task.train, self.task.validation, self.task.heldout)
        self._prompts = {prompt.uid: prompt for prompt in itertools.chain(*splits)}

    @property
    def reward_names(self) -> tuple[str, ...]:
        """Names of the reward functions, in the order of `reward_BM`."""
        return tuple(spec.name for spec in self.grader.specs)

    def begin_step(self, step: int) -> None:
        """Forget the failures of the step before; `step` is what rewards see as global_step."""
        self.step = step
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
                self.max_tokens,
            )
            self._encoded[uid] = tuple(ids)
        return self._encoded[uid]

    def demonstration_ids(self, uid: int) -> tuple[int, ...]:
        """Token ids of the text in the column `completion` of a prompt's row, the end included.

        Empty when this row has none. Raises UserError when the training data has no such column,
        and for a completion that is no text or longer than an answer may be.
        """
        row = self.prompt(uid).columns
        if "completion" not in row:
            raise UserError(
                "the training data has no column completion: give --data FILE whose rows have a "
                "prompt and a completion to imitate"
            )
        text = row["completion"]
        if text is None:
            return ()
        if not isinstance(text, str) or not text:
            raise UserError(f"the completion of prompt {uid} must be text, it is {text!r}")
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        answer = (*ids, *self.stop_ids)
        if len(answer) > self.max_tokens:
            raise UserError(
                f"the completion of prompt {uid} is {len(answer)} tokens long, the limit is "
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
        return [self.prompt(uid).prompt for uid in uids], texts

    def completion_ids(self, batch: Batch) -> list[list[int]]:
        """Token ids that the policy generated, per rollout."""
        mask_T = batch["mask_T"]
        if batch.size("B") == 0:
            return []
        flat = batch["id_T"][mask_T].cpu()
        return [piece.tolist() for piece in torch.split(flat, batch["length_B"].tolist())]

    def check_rewards(self) -> None:
        """Call the reward functions once, on empty answers, so that a mistake shows before step 1.

        What they return must be one finite number or None each; an exception is left for the run,
        where it costs its rows. Raises UserError.
        """
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
        """Run the reward functions over the batch's texts, outside this process."""
        uids = batch["uid_P"][batch["group_B"]].tolist()
        prompts, texts = self.texts(batch)
        rows = [self.prompt(uid).columns for uid in uids]
        columns = {name: [row.get(name) for row in rows] for name in _names(rows)}
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
        return Graded(
            torch.tensor(grades.scores_BM, dtype=torch.float32),
            torch.tensor(np.where(grades.scored_B, outcome, 0.0), dtype=torch.float32),
            torch.tensor(grades.scored_B),
            dict(grades.metrics),
        )

    def _keep_logged(self, batch: Batch, extra: Mapping[str, Sequence[Any]]) -> None:
        """Keep what rewards logged of each rollout until the next step."""
        if self._logged_at != self.step:
            self.logged, self._logged_at = {}, self.step
        for name, values in extra.items():
            rollouts = batch["rollout_uid_B"].tolist()
            self.logged.setdefault(name, {}).update(zip(rollouts, values, strict=True))

    def reward(self, batch: Batch) -> Tensor:
        """Weighted outcome [B] of the batch's rollouts, 0 where none was given."""
        return self.grade(batch).outcome_B

    def score(self, batch: Batch, policy: str, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Columns of the batch under the policy "current" or "ref". Raises UserError."""
        if policy not in self.policies:
            known = ", ".join(self.policies) or "none"
            raise UserError(f"no policy {policy!r} to score with; this run has {known}")
        return self.policies[policy].columns(batch, names)


def _names(rows: Sequence[Any]) -> list[str]:
    """Column names of the rows, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))
