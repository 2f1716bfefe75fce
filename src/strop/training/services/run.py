"""The one object of a run that holds all its services."""

from dataclasses import dataclass, field
from typing import Any

from strop.data.chat import PLAIN, Chat
from strop.engines.base import Engine
from strop.environments.tasks import Task
from strop.rewards.grader import Grader
from strop.training.learner.step_models import StepModels
from strop.training.services.episodes import RunEpisodes
from strop.training.services.grading import NoGrader, RunGrading, RunLog
from strop.training.services.sampling import RunSampling
from strop.training.services.scoring import RunScoring
from strop.training.services.stores import RunStores
from strop.training.services.texts import RunTexts
from strop.training.settings.limits import Limits


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
    stores: RunStores
    notes: list[str] = field(default_factory=list)  # notes for the user before step 1

    def score_with(self, models: StepModels) -> None:
        """Score with these models from now on, and sample at their temperature."""
        self.scoring.models = models

    def limit_to(self, limits: Limits) -> None:
        """Keep to these limits from now on."""
        if limits != self.limits:
            self.limits = self.sampling.limits = self.scoring.limits = limits
            self.texts.limit_to(limits)

    def attach(self, engine: Engine) -> None:
        """Sample with this engine, and request the statistics that it supports."""
        self.sampling.attach(engine)

    def begin_step(self, step: int) -> None:
        """Reset the costs and failures of the previous step."""
        self.grading.step = self.log.step = step
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
        """End the processes of the reward functions and of the environments."""
        self.grading.grader.close()
        self.episodes.close()


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
    """The services of a task; policies and engine come later.

    stop_ids: tokens that end an answer. end_ids: the token appended to a given answer.
    chat: how the tokenizer's chat template is used.
    """
    log, scoring = RunLog(), RunScoring(limits)
    texts = RunTexts(task, tokenizer, limits, end_ids, chat)
    return RunServices(
        task,
        limits,
        texts,
        RunGrading(task, grader, texts, log),
        RunSampling(limits, scoring, stop_strings, stop_ids),
        scoring,
        log,
        RunEpisodes(task.environment, texts),
        RunStores(),
    )
