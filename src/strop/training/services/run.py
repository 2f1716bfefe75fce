"""The object that holds all services of a run, and the service that samples further answers."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from strop.data.chat import PLAIN, Chat
from strop.data.prompts import Prompt
from strop.engines.asynchronous import asynchronous
from strop.engines.base import EXPERTS, Answer, Engine, Request
from strop.environments.tasks import Task
from strop.method.services import Player
from strop.rewards.grader import Grader
from strop.training.services.agents import RunAgents
from strop.training.services.cast import Cast
from strop.training.services.episodes import RunEpisodes
from strop.training.services.grading import NoGrader, RunGrading, RunLog
from strop.training.services.live import RunLive
from strop.training.services.scoring import RunScoring
from strop.training.services.stores import RunStores
from strop.training.services.texts import Limits, RunTexts


@dataclass
class RunSampling:
    """The engine of the rollouts and their sampling options. scoring: holds the temperature."""

    limits: Limits
    scoring: RunScoring
    stop_strings: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    cast: Cast = field(default_factory=Cast)
    wanted_statistics: frozenset[str] = frozenset({"logp_model", "entropy", EXPERTS})
    engine: Engine | None = None
    spent: int = 0  # tokens that parts requested in this step
    failures: list[str] = field(default_factory=list)  # why requests of this step failed
    drafts_before: tuple[int, int] = (0, 0)  # the engine's drafts before this step
    passes_before: dict[str, float] = field(default_factory=dict)
    exploring: Callable[[], AbstractContextManager[None]] | None = None  # with the explorer inside

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
        return {} if passes is None else passes.as_dict()

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
        """A request at the rollouts' temperature with their stop tokens; `changes` set fields."""
        plain = Request(
            tuple(ids), max_tokens, self.scoring.now.temperature, seed=seed,
            stop_ids=self.stop_ids, stop_strings=self.stop_strings,
        )  # fmt: skip
        return replace(plain, **changes)

    def players(self, game: int) -> Callable[[int], Player]:
        """The players of a game by role. game: a number that no other game of the run has."""
        return self.cast.players(game)

    def sample(self, requests: Sequence[Request]) -> list[Answer]:
        """Run requests on the rollouts' engine with its current weights; answers in their order.

        The last event of a failed request marks it as failed; UserError when all failed.
        """
        answers = self._sampled(requests)
        self.spent += sum(len(answer.ids) for answer in answers)
        return answers

    @property
    def explores(self) -> bool:
        """Whether the run keeps an average of its policies to explore with."""
        return self.exploring is not None

    def sample_explorer(self, requests: Sequence[Request]) -> list[Answer]:
        """Sample with the average of the run's policies; the tokens count as those of rollouts."""
        assert self.exploring is not None, "setup refuses an explorer that is not kept"
        with self.exploring():
            return self._sampled(requests)

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


@dataclass
class RunServices:
    """The services that parts may use, under the names of `strop.method.services.Services`."""

    task: Task
    limits: Limits
    texts: RunTexts
    grading: RunGrading
    sampling: RunSampling
    scoring: RunScoring
    log: RunLog
    episodes: RunEpisodes
    agents: RunAgents
    live: RunLive
    stores: RunStores
    judges: dict[str, RunGrading] = field(default_factory=dict)  # of validation sets, by their name
    notes: list[str] = field(default_factory=list)  # notes for the user before step 1

    def judged_by(self, grader: Grader, prompts: Sequence[Prompt]) -> RunGrading:
        """Grading of answers to these prompts by this grader alone, without logs."""
        plain = replace(
            self.task, train=prompts, validation=(), heldout=(), sets={}, environment=None,
            agent="", traces=None, live=None,
        )  # fmt: skip
        return RunGrading(plain, grader, self.texts, RunLog(), self.grading.on_failure)

    def limit_to(self, limits: Limits) -> None:
        """Use these limits from now on."""
        if limits != self.limits:
            self.limits = self.sampling.limits = self.scoring.limits = limits
            self.texts.limit_to(limits)

    def begin_step(self, step: int) -> None:
        """Reset the costs and failures of the previous step."""
        self.log.step = self.sampling.cast.step = step
        for grading in (self.grading, *self.judges.values()):
            grading.step = step
        self.scoring.spent = 0
        self.grading.failures.clear()
        self.sampling.begin_step()

    def metrics(self) -> dict[str, float]:
        """Returns the costs of this step's parts in addition to rollouts, the failed requests, and
        the engine's drafts and passes, without zeros.
        """
        found = {
            "services/tokens_sampled": float(self.sampling.spent),
            "services/tokens_scored": float(self.scoring.spent),
            "rollout/requests_failed": float(len(self.sampling.failures)),
        }
        found = {name: number for name, number in found.items() if number}
        return found | self.sampling.drafts() | self.sampling.passes()

    def close(self) -> None:
        """End the processes of the reward functions, of the environments and of agents, and accept
        no more rollouts.
        """
        for grading in (self.grading, *self.judges.values()):
            grading.grader.close()
        self.episodes.close()
        self.agents.close()
        self.live.close()


def serve(
    task: Task,
    tokenizer: Any,
    grader: Grader | NoGrader,
    limits: Limits,
    *,
    stop_strings: tuple[str, ...] = (),
    stop_ids: tuple[int, ...] = (),
    end_ids: tuple[int, ...] = (),
    chat: Chat = PLAIN,
) -> RunServices:
    """The services of a task; policies and engine are attached later.

    stop_ids: tokens that end an answer. end_ids: the token appended to a given answer.
    chat: how the tokenizer's chat template is used.
    """
    log, scoring = RunLog(), RunScoring(limits)
    texts = RunTexts(task, tokenizer, limits, end_ids, chat, stop_ids=stop_ids)
    live = RunLive(task.live, texts, lambda: log.step)
    if task.live is not None:
        texts.posted = live.prompt
    return RunServices(
        task,
        limits,
        texts,
        RunGrading(task, grader, texts, log),
        RunSampling(limits, scoring, stop_strings, stop_ids),
        scoring,
        log,
        RunEpisodes(task.environment, texts),
        RunAgents(task.agent, texts, are_judged=bool(task.rewards), options=task.agent_options),
        live,
        RunStores(),
    )
