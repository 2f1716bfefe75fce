"""What every strategy has: the fields that say how a token is drawn, and what the run asks it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

import torch

from strop.batch.batch import Batch
from strop.engines.base import Request
from strop.engines.rules import MinP, TopK, TopP
from strop.method.part import Draw, require
from strop.method.services import Sampling, Texts

# What a strategy gives, awaited: its batch, its state (None: it keeps none) and, if any, metrics.
Rollouts: TypeAlias = tuple[Batch, Any] | tuple[Batch, Any, Mapping[str, float]]
# The metric of tokens that were drawn for a strategy and are in no rollout.
THROWN_AWAY = "rollout/tokens_thrown_away"


@dataclass(frozen=True)
class SamplingFields:
    """token ~ softmax(logits / temperature), cut by top_k, then top_p, then min_p.

    A strategy takes these fields over, `class SampleTwice(SamplingFields)`, and its requests carry
    them, by `requests`. The methods after that are what a run asks of a strategy.
    """

    # Whether it plays episodes, so that the task must be an environment.
    needs_environment: ClassVar[bool] = False
    # Whether it ends answers that are being drawn, so that what comes of them depends on when.
    ends_others: ClassVar[bool] = False
    # Whether it makes a draw's rollouts alone as it does beside others, and keeps no state: a run
    # that collects ahead then lets each draw begin and end for itself.
    by_draw: ClassVar[bool] = False
    # Metrics that are above 0 where its rollouts differ from those of `sample_independently`, whose
    # draws it takes otherwise; empty: it draws in a way of its own.
    acted: ClassVar[tuple[str, ...]] = ()

    # Most new tokens; 0: the task's own limit. Default: ours (tasks know their answers' length).
    max_tokens: int = 0
    # Of the softmax; the trainer takes all log-probabilities at it. Default: paper (1.0).
    temperature: float = 1.0
    # Smallest set of likeliest tokens with at least this mass; 1: all. Default: ours (off).
    top_p: float = 1.0
    # Number of likeliest tokens kept; 0: all. Default: ours (off).
    top_k: int = 0
    # Tokens below this share of the likeliest token's probability are cut. Default: ours (off).
    min_p: float = 0.0

    def __post_init__(self) -> None:
        require(self, "max_tokens", low=0)
        require(self, "temperature", low=1e-3)
        require(self, "top_p", low=1e-6, high=1.0)
        require(self, "top_k", low=0)
        require(self, "min_p", low=0.0, high=1.0)

    @property
    def given(self) -> tuple[str, ...]:
        """Columns of the data that its answers are read from; empty for one that samples."""
        return ()

    @property
    def needs(self) -> frozenset[str]:
        """What an engine must be able to do beside sampling."""
        return frozenset({"rules"}) if self.rules() else frozenset()

    def rules(self) -> tuple[Any, ...]:
        """The cuts on the logits that differ from their defaults."""
        found: list[Any] = [TopK(self.top_k)] if self.top_k else []
        found += [TopP(self.top_p)] if self.top_p < 1 else []
        return (*found, *([MinP(self.min_p)] if self.min_p else []))

    def sampling(self) -> dict[str, Any]:
        """These fields alone, by name."""
        return {field.name: getattr(self, field.name) for field in fields(SamplingFields)}

    def request(
        self, sampling: Sampling, ids: Sequence[int], seed: int, max_tokens: int = 0, **others: Any
    ) -> Request:
        """A request that continues `ids`; max_tokens 0: as usual; others: fields of the Request."""
        settings: dict[str, Any] = {
            "max_tokens": max_tokens or self.max_tokens or sampling.answer_tokens,
            "temperature": self.temperature,
            "rules": self.rules(),
            "stop_ids": sampling.stop_ids,
            "stop_strings": sampling.stop_strings,
            "want": sampling.wanted_statistics,
        }
        return Request(tuple(ids), seed=seed, **(settings | others))

    def requests(
        self, draws: Sequence[Draw], texts: Texts, sampling: Sampling, rng: torch.Generator
    ) -> list[Request]:
        """One request a rollout, in the order of the draws, each with its own seed.

        A draw with the column `prompt_ids` is asked by these tokens in place of its prompt's.
        """
        total = sum(draw.num_rollouts for draw in draws)
        seeds = iter(torch.randint(2**62, (total,), generator=rng).tolist())
        return [
            self.request(sampling, ids, next(seeds))
            for draw in draws
            for ids in [draw.columns.get("prompt_ids") or texts.prompt_ids(draw.uid)]
            for _ in range(draw.num_rollouts)
        ]

    def new_tokens(self, usual: int, environment: Any = None) -> tuple[int, int]:
        """Most new tokens of an answer, and of a rollout; where episodes are played, of an action
        and of all of them. The run's limits are made from this.

        usual: of an answer to the task, where the strategy does not say. environment: that of the
        task, with its `max_turns` and `max_tokens`; None: there is none.
        """
        tokens = self.max_tokens or usual
        return tokens, tokens
