"""Services over a table engine: prompts by uid, outcomes by a function of the answer's tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from strop.batch import Batch
from strop.rollout import drive
from strop.rollout.engines.base import Finished, Request


class TableServices:
    """What probes ask for. `asked` holds the requests, `graded` the answers that were graded.

    outcome: tokens of an answer -> number, or None for no score. text: token -> text.
    """

    def __init__(
        self,
        engine: Any,
        prompts: Mapping[int, Sequence[int]],
        outcome: Callable[[Sequence[int]], float | None] = lambda ids: 0.0,
        text: Mapping[int, str] = {},
        columns: Mapping[int, Mapping[str, Any]] = {},
        context: int = 100,
        stop_ids: tuple[int, ...] = (0,),
    ) -> None:
        self.engine, self.prompts, self.outcome = engine, prompts, outcome
        self.text, self.columns, self.context, self.stop_ids = text, columns, context, stop_ids
        self.asked: list[Request] = []
        self.graded: list[list[int]] = []
        self.tokenizer = _Characters(text)

    def prompt_ids(self, uid: int) -> tuple[int, ...]:
        return tuple(self.prompts[uid])

    def prompt(self, uid: int) -> Any:
        return SimpleNamespace(columns=self.columns[uid])

    def request(self, ids: Sequence[int], max_tokens: int, seed: int, **changes: Any) -> Request:
        plain = Request(tuple(ids), max_tokens, seed=seed, stop_ids=self.stop_ids)
        return replace(plain, **changes)

    def sample(self, requests: Sequence[Request]) -> list[Finished]:
        self.asked += requests
        return drive.sample(self.engine, requests)

    def grade(self, batch: Batch) -> Any:
        lengths = batch["length_B"].tolist()
        answers = [a.tolist() for a in torch.split(batch["id_T"][batch["mask_T"]], lengths)]
        self.graded += answers
        found = [self.outcome(answer) for answer in answers]
        return SimpleNamespace(
            outcome_B=torch.tensor([value or 0.0 for value in found]),
            scored_B=torch.tensor([value is not None for value in found]),
        )


class _Characters:
    """A token per character."""

    def __init__(self, text: Mapping[int, str]) -> None:
        self.piece = text
        self.ids = {piece: id for id, piece in text.items()}

    def __len__(self) -> int:
        return len(self.piece)

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [self.ids[character] for character in text]}

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.piece[id] for id in ids)
