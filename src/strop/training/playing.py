"""Which processes play a run's episodes, and with what limits; what would wait for ever is refused.

With `training.max_staleness` another process collects, and the one that trains plays validation
episodes alone.
"""

from strop.environments.base import EnvironmentSource
from strop.environments.tasks import Task
from strop.environments.worker_process import ProcessWorker
from strop.environments.workers import EnvironmentWorkers
from strop.support.errors import UserError
from strop.training import rows
from strop.training.cluster.environments import workers_on_ray
from strop.training.parallel.ranks import Ranks
from strop.training.services.run import RunServices
from strop.training.settings.config import RunConfig
from strop.training.settings.sections import DataSettings


def open_environment_workers(
    config: RunConfig, services: RunServices, ranks: Ranks, apart: bool = False
) -> None:
    """Open the workers that play the task's environment, if this process does not play it; of
    several processes the first plays for all, since a time limit or a server could show each one
    something else. For a task of agents, open their server. Raises UserError.

    apart: another process collects, which has Ray's actors.
    """
    plays = not apart or next(rows.validated(config, services.task), None) is not None
    _check_lockstep(services.task, ranks, plays)
    if not plays:
        return
    if services.task.agent:
        services.agents.open()
    source, episodes = services.task.environment, services.episodes
    if source is None:
        return
    on_ray = bool(config.ray.address and config.ray.num_environments) and not apart
    num_workers = 0 if on_ray else config.data.num_env_workers(source)
    if not (on_ray or num_workers or source.is_asynchronous):
        _check_no_limit(config.data, source)
    if not ranks.alone:
        episodes.first = ranks.from_first

    def open() -> None:
        if on_ray:
            episodes.workers = workers_on_ray(config.ray, source, episodes.limits)
        elif num_workers:
            own = [ProcessWorker() for _ in range(num_workers)]
            episodes.workers = EnvironmentWorkers(source, episodes.limits, own)

    ranks.from_first(open)


def _check_lockstep(task: Task, ranks: Ranks, plays: bool) -> None:
    """Raise UserError where several processes would have to answer calls that come at any time.

    plays: whether these processes sample, if only for validation.
    """
    if ranks.alone:
        return
    if task.live is not None:
        raise UserError(
            f"{task.name} answers calls when they come, and several processes sample in "
            "lockstep: train with one process, or with engines on Ray"
        )
    if task.agent and plays:
        raise UserError(
            f"the agent {task.agent} calls the model when it likes, and several processes sample "
            "in lockstep, also for validation: train with one process, or with engines on Ray"
        )


def _check_no_limit(data: DataSettings, source: EnvironmentSource) -> None:
    """Raise UserError for a time limit of steps that nothing can interrupt."""
    if data.env_timeout_seconds != DataSettings.model_fields["env_timeout_seconds"].default:
        remedy = "write them as async" if source.steps_all else "add data.env_workers=1, or more"
        raise UserError(
            f"data.env_timeout_seconds={data.env_timeout_seconds:g}: steps of {source.name} run in "
            f"this process, where nothing can end one that takes too long: {remedy}"
        )
