"""A reward model: a transformers sequence classifier with one label scores prompt and completion.

`model:FOLDER_OR_NAME` runs in the grading process, so it needs its own memory beside the trained
model; every grading process holds a copy.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from strop.data.instructions import placed
from strop.data.rendering import applied
from strop.rewards.answers import text_of
from strop.rewards.scored import Unscored
from strop.support import hub
from strop.support.errors import UserError, first_line
from strop.support.exits import Exit
from strop.support.unknown_characters import unknown_characters


class RewardModel:
    """The classifier's one logit for each prompt with its completion.

    Text prompts are joined with the completion unchanged; messages go through the reward model's
    own chat template. device: "cpu" or a GPU. dtype: of its weights. A text that is longer than
    the model's positions has no score. Models are called as in TRL's GRPO trainer, without special
    tokens. special_tokens: a text gets those of the tokenizer and its end token, as in training by
    TRL's RewardTrainer; messages have theirs from the template.

    Raises UserError for a model that cannot be loaded or has several labels.
    """

    rows_are_independent = True

    def __init__(
        self,
        place: str,
        device: str = "cpu",
        dtype: str = "float32",
        batch_size: int = 16,
        timeout_seconds: float = 600.0,
        special_tokens: bool = False,
    ) -> None:
        _check_options(place, batch_size, timeout_seconds, special_tokens)
        self.place = place
        self.batch_size = batch_size
        self.special_tokens = special_tokens
        self.timeout_seconds = timeout_seconds
        self.tokenizer, self.model = _loaded(place, device, dtype)
        config = self.model.config
        if config.num_labels != 1:
            raise UserError(
                f"reward model {place} has {config.num_labels} labels: give a model with one"
            )
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        if self.tokenizer.pad_token is None:
            raise UserError(f"reward model {place} has a tokenizer without a padding or end token")
        config.pad_token_id = self.tokenizer.pad_token_id
        text_config = config.get_text_config()
        text_config.pad_token_id = self.tokenizer.pad_token_id
        self.max_tokens = int(getattr(text_config, "max_position_embeddings", 2**20))
        self.has_read = False  # answers with letters that its tokenizer knows

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any]) -> list[Any]:
        if not self.has_read:
            self._check_letters(prompts, completions)
        rows = [self._ids(p, c) for p, c in zip(prompts, completions, strict=True)]
        scores: list[Any] = [None] * len(rows)
        for i, ids in enumerate(rows):
            if why := self._why_not(ids):
                scores[i] = Unscored(why, Exit.UNREADABLE)
        fitting = sorted((i for i, s in enumerate(scores) if s is None), key=lambda i: len(rows[i]))
        for start in range(0, len(fitting), self.batch_size):
            members = fitting[start : start + self.batch_size]
            for i, score in zip(members, self._logits([rows[i] for i in members]), strict=True):
                scores[i] = score
        return scores

    def _check_letters(self, prompts: Sequence[Any], completions: Sequence[Any]) -> None:
        """Raise UserError where the tokenizer knows no letter of the first answers, or, where all
        are empty, of the prompts.
        """
        answers = [text for each in completions if (text := text_of(each)).strip()]
        texts = answers or [each for each in prompts if isinstance(each, str) and each.strip()]
        if texts and not any(_knows_some(self.tokenizer, text) for text in texts):
            raise UserError(
                f"reward model {self.place}: its tokenizer would read all letters of "
                f"{texts[0][:60]!r} as {self.tokenizer.unk_token}, so that all answers get one "
                "score: give a reward model that knows them"
            )
        self.has_read = bool(answers)

    def _why_not(self, ids: list[int]) -> str:
        """Why the model cannot take these tokens; empty where it can."""
        known = self.model.get_input_embeddings().num_embeddings
        if not 0 < len(ids) <= self.max_tokens:
            return f"{len(ids)} tokens, the reward model takes 1 to {self.max_tokens}"
        if max(ids) >= known:
            return f"token {max(ids)}, the reward model has {known}: its tokenizer is another's"
        return ""

    def _ids(self, prompt: Any, completion: Any) -> list[int]:
        special = self.special_tokens and isinstance(prompt, str)
        text, end = self._text(prompt, completion), self.tokenizer.eos_token_id
        ids: list[int] = self.tokenizer(text, add_special_tokens=special)["input_ids"]
        return [*ids, end] if special and end is not None and ids[-1:] != [end] else ids

    def _text(self, prompt: Any, completion: Any) -> str:
        if isinstance(prompt, str):
            return prompt + text_of(completion)
        if not getattr(self.tokenizer, "chat_template", None):
            raise UserError(
                f"the prompts are messages and the reward model {self.place} has no chat template: "
                "give prompts as text, or another model"
            )
        messages = [*placed(list(prompt), self.tokenizer, {}), *completion]
        return str(applied(self.tokenizer, messages, {}, tokenize=False))

    @torch.inference_mode()
    def _logits(self, rows: list[list[int]]) -> list[Any]:
        padded = self.tokenizer.pad(
            {"input_ids": rows}, padding=True, padding_side="right", return_tensors="pt"
        ).to(self.model.device)
        logits = self.model(
            input_ids=padded["input_ids"], attention_mask=padded["attention_mask"]
        ).logits[:, 0]
        return [
            value if value == value and abs(value) != float("inf")
            else Unscored(f"the reward model gave {value}", Exit.UNREADABLE)
            for value in logits.float().tolist()
        ]  # fmt: skip


def _knows_some(tokenizer: Any, text: str) -> bool:
    """Whether the tokenizer knows any character of a text beside blanks."""
    for piece in unknown_characters(tokenizer, text):
        text = text.replace(piece, "")
    return bool(text.strip())


def _check_options(
    place: str, batch_size: int, timeout_seconds: float, special_tokens: bool
) -> None:
    """Raise UserError for options of the wrong type or range."""
    if type(special_tokens) is not bool:
        raise UserError(
            f"reward model {place} with special_tokens={special_tokens!r}: make it true or false"
        )
    if type(batch_size) is not int or batch_size < 1:
        raise UserError(
            f"reward model {place} with batch_size={batch_size!r}: make it a whole number from 1"
        )
    number = isinstance(timeout_seconds, int | float) and not isinstance(timeout_seconds, bool)
    if not number or not 0 < timeout_seconds < float("inf"):
        raise UserError(
            f"reward model {place} with timeout_seconds={timeout_seconds!r}: make it positive"
        )


def _loaded(place: str, device: str, dtype: str) -> tuple[Any, Any]:
    """Tokenizer and model. Raises UserError when either cannot be loaded."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()
    folder = Path(place)
    looks_local = folder.exists() or place.startswith((".", "/", "~"))
    if looks_local and not (folder / "config.json").is_file():
        raise UserError(f"no reward model in {place}: the folder has no config.json")
    if not isinstance(getattr(torch, str(dtype), None), torch.dtype):
        raise UserError(f"reward model {place}: dtype {dtype!r} is unknown: float32 or bfloat16")
    how: dict[str, Any] = {"trust_remote_code": False}
    if not looks_local:
        how["local_files_only"] = hub.only_cached(place, what="reward model", shipped=())
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **how)
        model, report = AutoModelForSequenceClassification.from_pretrained(
            place, dtype=getattr(torch, dtype), output_loading_info=True, **how
        )
        model.to(device)
    except Exception as error:  # damaged files, or a device that is not there: of any type
        raise UserError(f"cannot load the reward model {place!r}: {first_line(error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:  # transformers fills them with random numbers
        raise UserError(
            f"reward model {place} has no weights for {', '.join(missing[:3])}: it was not trained "
            "as a reward model"
        )
    return tokenizer, model.eval()
