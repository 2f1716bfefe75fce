"""Samples further answers of the policy for parts that request them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from strop.engines.asynchronous import asynchronous
from strop.engines.base import Answer, Engine, Request
from strop.training.services.scoring import RunScoring
from strop.training.settings.limits import Limits


@dataclass
class RunSampling:
    """The engine of the rollouts and their sampling options. scoring: knows the temperature."""

    limits: Limits
    scoring: RunScoring
    stop_strings: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    wanted_statistics: frozenset[str] = frozenset({"logp_model", "entropy"})
    engine: Engine | None = None
    spent: int = 0  # tokens that parts requested in this step
    failures: list[str] = field(default_factory=list)  # why requests of this step failed
    drafts_before: tuple[int, int] = (0, 0)  # the engine's drafts before this step
    passes_before: dict[str, float] = field(default_factory=dict)

    def begin_step(self) -> None:
        """Reset the costs and failures of the previous step."""
        self.spent = 0
        self.failures.clear()
        self.drafts_before = self.engine.drafts if self.engine else (0, 0)
        self.passes_before = self._passes_so_far()

    def drafts(self) -> dict[str, float]:
        """Returns metrics of the engine's drafts in this step; empty when it made none."""
        if self.engine is None or self.engine.drafts[0] == self.drafts_before[0]:
            return {}
        now, before = self.engine.drafts, self.drafts_before
        drafted, accepted = now[0] - before[0], now[1] - before[1]
        return {"drafts/tokens": float(drafted), "drafts/frac_accepted": accepted / drafted}

    def passes(self) -> dict[str, float]:
        """Returns metrics of the engine's passes in this step; empty when it made none or does not
        measure them.
        """
        now, before = self._passes_so_far(), self.passes_before
        found = {f"perf/{name}": value - before.get(name, 0.0) for name, value in now.items()}
        return found if found.get("perf/decode/passes") else {}

    def _passes_so_far(self) -> dict[str, float]:
        passes = None if self.engine is None else self.engine.passes
        return {} if passes is None else passes.told()

    def attach(self, engine: Engine) -> None:
        """Sample with this engine, and request the statistics that it supports."""
        self.engine = engine
        self.wanted_statistics &= engine.capabilities

    @property
    def answer_tokens(self) -> int:
        """Most new tokens of an answer; where episodes are played, of an action."""
        return self.limits.answer_tokens

    @property
    def episode_tokens(self) -> int:
        """Most new tokens of an answer or of an episode's actions together."""
        return self.limits.episode_tokens

    @property
    def context_tokens(self) -> int:
        """Most tokens of a sequence, of the model and of the engine."""
        most = self.limits.context_tokens
        longest = self.engine.longest if self.engine else None
        return most if longest is None else min(most, longest)

    def request(self, ids: Sequence[int], max_tokens: int, seed: int, **changes: Any) -> Request:
        """A request to `sample` at the rollouts' temperature, with their ends; fields to change."""
        plain = Request(
            tuple(ids), max_tokens, self.scoring.now.temperature, seed=seed,
            stop_ids=self.stop_ids, stop_strings=self.stop_strings,
        )  # fmt: skip
        return replace(plain, **changes)

    def sample(self, requests: Sequence[Request]) -> list[Answer]:
        """Run requests on the rollouts' engine with its current weights; answers in their order.

        The last event of a failed request marks it as failed; UserError when all failed.
        """
        answers = self._sampled(requests)
        self.spent += sum(len(answer.ids) for answer in answers)
        return answers

    def sample_newest(self, requests: Sequence[Request]) -> list[Answer]:
        """Sample with the newest weights when the engine otherwise uses stale ones.

        The tokens belong to rollouts, so they do not count as tokens sampled by parts.
        """
        assert self.engine is not None
        with self.engine.newest():
            return self._sampled(requests)

    def _sampled(self, requests: Sequence[Request]) -> list[Answer]:
        assert self.engine is not None
        answers = asynchronous(self.engine).sample(requests)
        self.failures += [answer.events[-1].why for answer in answers if answer.failed]
        return answers
