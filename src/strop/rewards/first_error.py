"""Judges that name the first wrong step of an answer: a reward to train one, and one as a reward.

    strop train grpo --data judged.jsonl --reward strop.rewards.first_error:verdict ...
    strop train fapo ... --reward 'strop.rewards.first_error:flaw(model="judge")' ...

A verdict is a whole number, the index of the first wrong step from 0, or -1 where there is none. It
is the whole text, or in its last \\boxed{}. Source: arXiv 2510.22543; code yyDing1/FAPO.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from strop.data.encode import text_ids
from strop.rewards.answers import text_of
from strop.rewards.judge import Judge, check_filling, fields_of
from strop.rewards.scored import Unscored
from strop.support.errors import UserError, first_line
from strop.support.exits import Exit

SOUND = -1
QUESTION = "{prompt}{completion}\n:"  # what a judge of worked Countdown reads
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_NUMBER = re.compile(r"-?\d{1,6}", re.ASCII)


def read_verdict(text: str) -> int | None:
    """The verdict in a judge's answer; None where there is none."""
    boxed = _BOXED.findall(text)
    verdict = (boxed[-1] if boxed else text).strip()
    return int(verdict) if _NUMBER.fullmatch(verdict) else None


def verdict_reward(verdict: int | None, true: int, num_steps: int) -> float:
    """The reward of a verdict.

    1 where said = true;   -1 where it is unreadable (None) or outside -1 .. num_steps - 1
    both name a step: 1 - |said - true| / num_steps;   else -1
    """
    if verdict is None or not SOUND <= verdict < num_steps:
        return -1.0
    if (verdict == SOUND) != (true == SOUND):
        return -1.0
    return 1.0 - abs(verdict - true) / num_steps


def verdict(
    completions: Sequence[Any], first_error: Sequence[int], num_steps: Sequence[int],
    log_metric: Callable[[str, float], None] | None = None, **columns: Any,
) -> list[float]:  # fmt: skip
    """The reward that trains a judge, by the columns `first_error` and `num_steps`.

    Raises UserError for a row without a whole number in both.
    """
    for true, num in zip(first_error, num_steps, strict=True):
        if not isinstance(true, int) or not isinstance(num, int) or num < 1:
            raise UserError(
                f"verdict: a row has first_error {true!r} and num_steps {num!r}: give whole "
                "numbers, the index of the first wrong step (-1: none) and the number of steps, "
                "1 or more"
            )
    verdicts = [read_verdict(text_of(each)) for each in completions]
    if log_metric is not None and verdicts:
        right = sum(a == b for a, b in zip(verdicts, first_error, strict=True))
        log_metric("judge/frac_right", right / len(verdicts))
    rows = zip(verdicts, first_error, num_steps, strict=True)
    return [verdict_reward(*row) for row in rows]


def flaw(
    model: str = "", judge: str = "", prompt: str = QUESTION, max_tokens: int = 8
) -> Callable[..., list[Any]]:
    """A reward function whose numbers are verdicts, for `fapo`; None where one cannot be read.

    model: the folder of a frozen model, loaded in this process, which answers `prompt` greedily
    with at most `max_tokens` tokens. judge: or a file as for `judge:FILE.toml`, with its own
    prompt; its `scale` begins with -1. Raises UserError for none or both.
    """
    if bool(model) == bool(judge):
        raise UserError('flaw: give model="FOLDER" or judge="FILE.toml", one of them')
    if judge:
        return _Served(judge)
    try:
        if others := set(fields_of(prompt)) - {"prompt", "completion"}:
            raise ValueError(f"it has the field {{{min(others)}}}: write {{{{ for a brace")
        check_filling(prompt)
    except ValueError as error:
        raise UserError(
            f"flaw: prompt={prompt!r}: {error}; its fields are prompt and completion"
        ) from error
    if type(max_tokens) is not int or max_tokens < 1:
        raise UserError(f"flaw: max_tokens={max_tokens!r}: make it a whole number from 1")
    return _Local(model, prompt, max_tokens)


class _Served:
    """Gets verdicts from a model behind an endpoint."""

    rows_are_independent = True

    def __init__(self, place: str) -> None:
        self.judge = Judge(place)
        self.low, self.high = self.judge.settings.scale
        if self.low != SOUND:
            raise UserError(f"judge {place}: scale begins with {self.low:g}: let it begin with -1")
        self.timeout_seconds = self.judge.timeout_seconds

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Any:
        shares = self.judge(prompts, completions, **columns)
        return [self._verdict(each) for each in shares]

    def _verdict(self, share: float | Unscored) -> float | Unscored | None:
        """The verdict that the judge wrote, from its share of the scale."""
        if isinstance(share, Unscored):
            return None if share.cause is Exit.UNREADABLE else share
        return float(round(self.low + share * (self.high - self.low)))


class _Local:
    """Gets verdicts from a frozen model in this process."""

    rows_are_independent = True
    timeout_seconds = 600.0

    def __init__(self, place: str, prompt: str, max_tokens: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        try:
            self.tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
            self.model = AutoModelForCausalLM.from_pretrained(
                Path(place), trust_remote_code=False, dtype=torch.float32
            ).eval()
        except Exception as error:  # damaged or missing files raise errors of any type
            why = first_line(error)
            raise UserError(f"flaw: the judge {place} cannot be loaded: {why}") from error
        self.prompt, self.max_tokens = prompt, max_tokens

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Any:
        found = []
        for prompt, completion in zip(prompts, completions, strict=True):
            asked = self.prompt.format(prompt=text_of(prompt), completion=text_of(completion))
            verdict = read_verdict(self._answer(asked))
            found.append(None if verdict is None else float(verdict))
        return found

    @torch.no_grad()
    def _answer(self, text: str) -> str:
        """The greedy answer."""
        ids = torch.tensor([text_ids(text, self.tokenizer)])
        end = self.tokenizer.eos_token_id
        drawn = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=end,
            pad_token_id=end, max_new_tokens=self.max_tokens,
        )  # fmt: skip
        return self.tokenizer.decode(drawn[0, ids.shape[1] :], skip_special_tokens=True)
