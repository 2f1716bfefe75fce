"""The object that holds all services of a run.

The services that grade and log rollouts and that sample further answers are here, too; the others
have files of their own.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.data.chat import PLAIN, Chat
from strop.data.prompts import Prompt
from strop.engines.asynchronous import asynchronous
from strop.engines.base import EXPERTS, Answer, Engine, Request
from strop.environments.tasks import Task
from strop.method.services import Graded, Player
from strop.rewards.grader import Failure, Grader, Grades, reference, weighted_sum
from strop.rewards.source import RewardSpec
from strop.rewards.trial import notes_of_failing
from strop.support.errors import UserError
from strop.support.exits import FAILED, OUTSIDE, Exit
from strop.training.services.agents import RunAgents
from strop.training.services.cast import Cast
from strop.training.services.episodes import RunEpisodes, with_episodes
from strop.training.services.live import RunLive
from strop.training.services.scoring import RunScoring
from strop.training.services.stores import RunStores
from strop.training.services.texts import Limits, RunTexts


@dataclass
class RunLog:
    """Columns of the rollout table, by rollout; the next step's first value discards them."""

    step: int = 0
    logged: dict[str, dict[int, Any]] = field(default_factory=dict)
    _logged_at: int = 0  # step of the columns in `logged`

    def log_rollouts(self, name: str, values: Mapping[int, Any]) -> None:
        """Keep a column, by rollout, until the next step."""
        if self._logged_at != self.step:
            self.logged, self._logged_at = {}, self.step
        self.logged.setdefault(name, {}).update(values)

    def turn_to(self, step: int, logged: dict[str, dict[int, Any]]) -> None:
        """Write this step's columns into this table from now on."""
        self.step = self._logged_at = step
        self.logged = logged


class NoGrader:
    """Replaces the grader when only the environment gives rewards, or nothing learns from them."""

    specs: tuple[RewardSpec, ...] = ()

    def close(self) -> None:
        """There is nothing to close."""


@dataclass
class RunGrading:
    """The task's rewards. step: what reward functions see as global_step. on_failure: the score of
    an answer that makes a reward fail by its own fault; None: the answer is unscored. meanwhile:
    work that runs until the future of the grades, its argument, is done.
    """

    task: Task
    grader: Grader | NoGrader
    texts: RunTexts
    log: RunLog
    on_failure: float | None = 0.0
    step: int = 0
    failures: list[Failure] = field(default_factory=list)  # of this step
    meanwhile: Callable[[Future[Grades]], None] | None = None
    own_reward: str = ""  # see `Task.own_reward`
    _asked: Future[Grades] | None = None

    def __post_init__(self) -> None:
        self.own_reward = self.task.own_reward

    @property
    def can_grade(self) -> bool:
        """Returns whether reward functions or the environment score answers."""
        return bool(self.own_reward) or not isinstance(self.grader, NoGrader)

    @property
    def reward_names(self) -> tuple[str, ...]:
        """Names of the rewards in the order of `reward_BM`: the rollouts' own comes first."""
        own = (self.own_reward,) if self.own_reward else ()
        return (*own, *(spec.name for spec in self.grader.specs))

    @property
    def reward_weights(self) -> tuple[float, ...]:
        """Returns the weight of each reward in the outcome; the rollouts' own has weight 1."""
        own = (1.0,) if self.own_reward else ()
        return (*own, *(spec.weight for spec in self.grader.specs))

    @property
    def sum_note(self) -> str:
        """A note that pass@k takes a sum of rewards for right; empty where one reward counts."""
        pairs = zip(self.reward_names, self.reward_weights, strict=True)
        counted = [name for name, weight in pairs if weight]
        if len(counted) < 2:
            return ""
        return (
            f"pass@k and maj@k count an answer as right where the weighted sum of "
            f"{' and '.join(counted)} is 1 or more, whichever of them gives it; to score "
            "validations by what is right alone, set evaluation.reward=FUNCTION"
        )

    def final_answers(self, texts: Sequence[str]) -> list[str | None]:
        """The final answer in each text. Raises UserError where the task has none."""
        return self.task.final_answers(texts)

    def check_rewards(self) -> list[str]:
        """Call the reward functions once, on empty answers, so that a mistake shows before step 1.

        Each must return one finite number or None per answer. Returns a note for each function that
        raises on everything it is given; in the run that loses rows, and stops the run where no
        answer ever passes. Raises UserError, also for a reward whose server does not answer.
        """
        notes: list[str] = []
        if isinstance(self.grader, NoGrader):
            return notes
        for split in self.task.splits.values():
            if self.task.live is not None and split is self.task.train:
                continue  # its columns come with posted rollouts
            prompts = split[:2]
            rows = [prompt.columns for prompt in prompts]
            columns = {name: [row.get(name) for row in rows] for name in _names(rows)}
            if prompts:
                self.grader.check(columns)
            if split is self.task.train:
                forms = [p.prompt for p in prompts]
                texts = [self.texts.prompt_text(p.uid) for p in prompts]
                judge = partial(
                    self.grader.grade,
                    forms,
                    completion_ids=[()] * len(prompts),
                    columns=columns,
                    groups=range(len(prompts)),
                    prompt_texts=texts,
                )
                graded = judge([""] * len(prompts), strict=True)
                for name, why in graded.unreachable.items():
                    raise UserError(
                        f"the reward {name} could score no answer before step 1: {why}. Start its "
                        "server, or correct its settings"
                    )
                if failing := graded.failing:  # perhaps on empty answers alone
                    references = [reference(columns, row) or "1" for row in range(len(prompts))]
                    others = judge(references).failing
                    failing = {name: why for name, why in others.items() if name in failing}
                    notes += notes_of_failing(
                        failing, self.grader, forms, texts, references, columns
                    )
        return notes

    def grade(self, batch: Batch) -> Graded:
        """Run the reward functions over the batch's texts, outside this process; without any, every
        rollout has the score 0.

        Where episodes were played, or rollouts are recorded, their own rewards are the first
        component, with weight 1. Answers that are sampled beside recorded ones have none. Pending
        rollouts have no score yet, and no function sees them.
        """
        if "pending_B" in batch and bool(batch["pending_B"].any()):
            return _beside_pending(self.grade(batch.keep(~batch["pending_B"])), batch["pending_B"])
        sampled = self.own_reward == "recorded" and "reward_K" not in batch
        if sampled and isinstance(self.grader, NoGrader):
            raise UserError(
                "the method samples answers beside the recorded rollouts, which nothing scores: "
                "give --reward FILE.py:FUNCTION"
            )
        if not self.own_reward or sampled:
            return _with_ends(self._verified(batch), batch)
        verified = None if isinstance(self.grader, NoGrader) else self._verified(batch)
        graded = _with_ends(with_episodes(batch, verified), batch)
        return graded._replace(metrics={**graded.metrics, **self._out_of_range(batch)})

    def _out_of_range(self, batch: Batch) -> dict[str, float]:
        """The share of the episodes that did not fail whose sum of rewards lies outside the range
        that the environment declares; empty where it is 0.
        """
        if self.task.environment is None or self.task.reward_range is None:
            return {}
        low, high = self.task.reward_range
        sum_B = segments.total(batch["reward_K"].double(), batch["rollout_K"], batch.size("B"))
        slack = 1e-6 * max(abs(low), abs(high), 1.0)  # sums of fractions are rounded
        outside_B = (sum_B < low - slack) | (sum_B > high + slack)
        if "exit_B" in batch:
            outside_B = outside_B[batch["exit_B"] < FAILED]
        if not bool(outside_B.any()):
            return {}
        return {"episode/out_of_range_fraction": float(outside_B.double().mean())}

    def grade_beside(self, batch: Batch, opponents: Sequence[str]) -> Graded:
        """Like `grade`, with another answer's text beside each: the reward's column `opponent`.

        Raises UserError where episodes are played or there is no reward function.
        """
        if self.own_reward or isinstance(self.grader, NoGrader):
            raise UserError("answers are compared by a reward function: give --reward and prompts")
        return _with_ends(self._verified(batch, {"opponent": list(opponents)}), batch)

    def _verified(
        self, batch: Batch, more: Mapping[str, list[Any]] = MappingProxyType({})
    ) -> Graded:
        """Run the reward functions; `more`: columns that replace those of the data."""
        if isinstance(self.grader, NoGrader):
            zero_B = torch.zeros(batch.size("B"))
            return Graded(zero_B[:, None][:, :0], zero_B, zero_B == 0, {}, zero_B.long())
        batch = _without_heads(batch)
        uids = batch["uid_P"][batch["group_B"]].tolist()
        prompts, texts = self.texts.decoded(batch)
        rows = [self.texts.row(uid) for uid in uids]
        columns = {name: [row.get(name) for row in rows] for name in _names(rows)} | dict(more)
        shown = {uid: self.texts.prompt_text(uid) for uid in set(uids)}
        given = (prompts, texts, self.texts.completion_ids(batch), columns)
        grades = self._call_rewards(
            partial(
                self.grader.grade,
                *given,
                step=self.step,
                groups=batch["group_B"].tolist(),
                prompt_texts=[shown[uid] for uid in uids],
                truncated=batch["truncated_B"].tolist() if "truncated_B" in batch else (),
            )
        )
        self.failures.extend(grades.failures)
        for name, values in grades.extra.items():
            rollouts = batch["rollout_uid_B"].tolist()
            self.log.log_rollouts(name, dict(zip(rollouts, values, strict=True)))
        return counted(grades, self.grader.specs, self.on_failure)

    def _call_rewards(self, ask: Callable[[], Grades]) -> Grades:
        """Call the reward functions, one call at a time, in a separate thread when other work runs
        meanwhile.
        """
        if self._asked is not None:  # the work that runs meanwhile makes this call
            wait([self._asked])
            return ask()
        if self.meanwhile is None:
            return ask()
        asked = self._asked = Future[Grades]()
        threading.Thread(target=_set_result, args=(asked, ask), daemon=True).start()
        try:
            self.meanwhile(asked)
            return asked.result()
        finally:
            self._asked = None


def _set_result(asked: Future[Grades], ask: Callable[[], Grades]) -> None:
    try:
        asked.set_result(ask())
    except BaseException as error:  # it is raised where the result is read
        asked.set_exception(error)


def counted(grades: Grades, specs: Sequence[RewardSpec], on_failure: float | None) -> Graded:
    """The grades, where a failure by the answer's own fault counts `on_failure`, and any other
    failure leaves the answer unscored.
    """
    num = len(grades.scored_B)
    scores_BM, exit_B = grades.scores_BM.copy(), torch.zeros(num, dtype=torch.int64)
    unscored_B = np.zeros(num, dtype=bool)
    place = {spec.name: m for m, spec in enumerate(specs)}
    for failure in grades.failures:
        exit_B[failure.row] = max(int(exit_B[failure.row]), failure.cause)
        if failure.cause.is_policys and on_failure is not None:
            scores_BM[failure.row, place[failure.reward]] = on_failure
        else:
            unscored_B[failure.row] = True
    outcome_B = weighted_sum(scores_BM, [spec.weight for spec in specs])
    scored_B = ~unscored_B & ~np.isnan(outcome_B)
    return Graded(
        torch.tensor(scores_BM, dtype=torch.float32),
        torch.tensor(np.where(scored_B, outcome_B, 0.0), dtype=torch.float32),
        torch.tensor(scored_B),
        dict(grades.metrics),
        exit_B,
    )


def _with_ends(graded: Graded, batch: Batch) -> Graded:
    """The grades with the rollouts' exits; exits that are not the policy's fault leave no score."""
    if "exit_B" not in batch:
        return graded
    ended_B = batch["exit_B"]
    lost_B = ended_B >= OUTSIDE
    as_ended_B = (graded.exit_B == Exit.DONE) | lost_B
    return graded._replace(
        reward_BM=graded.reward_BM.masked_fill(lost_B[:, None], torch.nan),
        outcome_B=graded.outcome_B.masked_fill(lost_B, 0.0),
        scored_B=graded.scored_B & ~lost_B,
        exit_B=torch.where(as_ended_B, ended_B, graded.exit_B),
    )


def _beside_pending(graded: Graded, pending_B: Tensor) -> Graded:
    """The grades of the rollouts that have ended, with rows for those that are pending."""
    at_B = ~pending_B

    def spread(ended: Tensor, otherwise: float) -> Tensor:
        found = ended.new_full((len(pending_B), *ended.shape[1:]), otherwise)
        found[at_B] = ended
        return found

    return graded._replace(
        reward_BM=spread(graded.reward_BM, torch.nan),
        outcome_B=spread(graded.outcome_B, 0.0),
        scored_B=spread(graded.scored_B, False),
        exit_B=spread(graded.exit_B, Exit.PENDING),
    )


def _without_heads(batch: Batch) -> Batch:
    """The batch without the tokens at the beginning of answers that rewards do not see."""
    if "head_B" not in batch:
        return batch
    mask_T, rollout_T = batch["mask_T"], batch["rollout_T"]
    row_N = mask_T.nonzero().squeeze(1)
    place_N = segments.place_in_run(rollout_T[row_N], batch.size("B"))
    shown_T = mask_T.clone()
    shown_T[row_N] = place_N >= batch["head_B"][rollout_T[row_N]]
    return batch.set(mask_T=shown_T)


def _names(rows: Sequence[Iterable[str]]) -> list[str]:
    """Column names of the rows, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


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
        no more rollouts: each of these, also after an error of one before.
        """
        graders = [each.grader for each in (self.grading, *self.judges.values())]
        with ExitStack() as closing:  # the last one first
            for each in (self.live, self.agents, self.episodes, *graders):
                closing.callback(each.close)


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
