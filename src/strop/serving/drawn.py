"""Remembers a server's recent answers, to fill in values that records of them lack."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from strop.serving.protocol import ModelAnswer, ModelCall
from strop.traces.records import TurnRecord

MOST_TOKENS = 2**21  # most remembered tokens


class Numbers(NamedTuple):
    """Values of each token of an answer; empty where the engine does not report them."""

    versions: array[int]
    log_probs: array[float]
    entropies: array[float]
    model_log_probs: array[float]


class Drawn:
    """The newest answers, by the tokens of prompt and answer. All methods are thread-safe."""

    def __init__(self, most: int = MOST_TOKENS) -> None:
        self.most, self.size = most, 0
        self.lock = threading.Lock()
        self.answers: OrderedDict[int, Numbers] = OrderedDict()

    def remember(self, call: ModelCall, answers: Iterable[ModelAnswer]) -> None:
        """Remember the answers to a call."""
        with self.lock:
            for each in answers:
                key = _key(call.prompt_ids, each.ids)
                self._forget(key)
                self.answers[key] = Numbers(
                    array("q", each.versions),
                    array("d", each.log_probs),
                    array("d", each.entropies),
                    array("d", each.model_log_probs),
                )
                self.size += len(each.ids)
            while self.size > self.most and len(self.answers) > 1:
                self._forget(next(iter(self.answers)))

    def complete(self, record: TurnRecord) -> TurnRecord:
        """Fill in the columns that the record lacks, where its tokens are remembered."""
        with self.lock:
            found = self.answers.get(_key(record.prompt_ids, record.output_ids))
        if found is None:
            return record
        return replace(
            record,
            versions=record.versions or tuple(found.versions),
            output_log_probs=record.output_log_probs or tuple(found.log_probs),
            entropies=record.entropies or tuple(found.entropies),
            model_log_probs=record.model_log_probs or tuple(found.model_log_probs),
        )

    def _forget(self, key: int) -> None:
        if (gone := self.answers.pop(key, None)) is not None:
            self.size -= len(gone.versions)


def _key(prompt: Sequence[int], output: Sequence[int]) -> int:
    return hash((tuple(prompt), tuple(output)))
