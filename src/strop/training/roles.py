"""Roles with adapters of their own: the checks before a run, and the work after each step."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from strop.engines.base import ADAPTERS, Engine
from strop.environments.tasks import Task
from strop.method import part as parts
from strop.method.algorithm import Method
from strop.method.charts import Curve, LineChart
from strop.parts.rollout.sample_two_attempts import FIRST, SECOND
from strop.support.errors import UserError
from strop.training.learner import adapters
from strop.training.learner.models import Loaded
from strop.training.parallel.ranks import Ranks
from strop.training.services.cast import Cast
from strop.training.services.league import League, Played
from strop.training.settings.config import RunConfig
from strop.training.world import World

LEAGUE = "league"  # in a run's state
# Services whose answers or scores would belong to no role, and what a part does with each.
OF_NO_ROLE = {"sampling": "draws further answers", "scoring": "has answers scored"}


def cast_of(config: RunConfig) -> Cast:
    """Who plays the roles of a run, without a league."""
    settings = config.roles
    if not settings.play:
        return Cast()
    return Cast(settings.trained, settings.players, settings.swap_every, seed=config.seed)


def league_of(config: RunConfig) -> League | None:
    """The league of a run, if it has one."""
    own = config.roles
    if not own.league_every:
        return None
    return League(own.trained, own.league_every, own.league_share, own.league_size, own.league_k)


def check(config: RunConfig, method: Method, task: Task, ranks: Ranks) -> None:
    """Raise UserError where the run's roles cannot have groups or adapters of their own."""
    _check_groups(method, task)
    if not config.roles.play:
        return
    where = {
        "several processes": not ranks.alone,
        "ray.address": bool(config.ray.address),
        "training.max_staleness": bool(config.training.max_staleness),
        "engine.staleness": bool(getattr(config.engine, "staleness", 0)),
        "control: renew_reference": "moves_reference" in method.facts(),
        "control: step_back_to_anchor": "moves_anchor" in method.facts(),
        "control: average_explorer": "moves_explorer" in method.facts(),
    }
    for what, given in where.items():
        if given:
            raise UserError(f"roles.play and {what} do not go together: leave one of the two out")
    for algorithm in method.algorithms:
        use = algorithm.rollout
        if not use.part.knows_roles:
            raise UserError(
                f"roles.play: {use.label} knows no roles: take a method that plays turns "
                "(rollout=play_turns), or that answers twice (cory)"
            )
        for path, other in algorithm.uses():
            wanted = OF_NO_ROLE.keys() & {each.name for each in parts.parameters(other.part)}
            if other.part is not use.part and wanted:
                why = OF_NO_ROLE[sorted(wanted)[0]]
                raise UserError(f"roles.play: {path} {why}, in no role: leave it out")
    _check_players(config, task)


def _check_groups(method: Method, task: Task) -> None:
    """Raise UserError where one role's group could get more rollouts: an episode is of them all."""
    asking = [path for path, use in method.uses() if "extends_groups" in parts.facts(use)]
    if not asking or task.environment is None:
        return
    with task.environment.opened() as made:
        several = len(set(made.roles)) > 1
    if several:
        raise UserError(
            f"{asking[0]} requests more rollouts of one group, and {task.environment.name} has "
            "several roles, which have a group each in the same episodes: leave it out"
        )


def _check_players(config: RunConfig, task: Task) -> None:
    """Raise UserError for roles without a player, and for players whom no game needs."""
    source, settings = task.environment, config.roles
    roles: tuple[int, ...] = (FIRST, SECOND)
    if source is not None:
        with source.opened() as made:
            roles = made.roles
    if missing := sorted({*roles} - settings.players.keys()):
        raise UserError(f"roles.play: the role {missing[0]} has no player: give it one")
    frozen = {*settings.players.values()} - {*settings.trained}
    if (source is None or len(roles) < 2) and (frozen or settings.league_every):
        what = "league" if settings.league_every else "player that is not trained"
        raise UserError(f"roles.play: a {what} needs a game of several players")


def check_engine(config: RunConfig, engine: Engine) -> None:
    """Raise UserError where the engine serves one adapter only."""
    if config.roles.play and ADAPTERS not in engine.capabilities:
        raise UserError(
            f"roles.play: the engine {config.engine.kind!r} draws all answers with the same "
            "weights: take engine.kind=local or vllm_here"
        )


def charts(config: RunConfig) -> tuple[LineChart, ...]:
    """The report's charts of a league."""
    if not config.roles.league_every:
        return ()
    curves = tuple(Curve(f"league/elo/{name}", name) for name in config.roles.trained)
    caption = "Elo of the current adapters, from games against their copies."
    return (LineChart("Elo", caption, curves, section="League", zero=False),)


def after_step(
    config: RunConfig, world: World, loaded: Loaded, step: int, state: dict[str, Any]
) -> dict[str, float]:
    """Reset the optimisers at a swap of roles and update the league; returns its metrics."""
    every = config.roles.swap_every
    if every and step % every == 0 and config.roles.reset_on_swap:
        world.policy.forget_moments()
        if world.critic is not None:
            world.critic.optimiser.state.clear()
    league = world.services.sampling.cast.league
    if league is None:
        return {}
    metrics = league.rate(list(_games(world.services.log.logged)))
    if league.due(step):
        new, left = league.take(step)
        for copy, name in new.items():
            adapters.copy_frozen(loaded.adapter, name, copy)
        for copy in left:
            adapters.remove(loaded.adapter, copy)
    state[LEAGUE] = league.state_dict()
    return metrics


def take_up(world: World, loaded: Loaded, place: Path, state: Mapping[str, Any]) -> None:
    """Restore the league from a checkpoint."""
    league = world.services.sampling.cast.league
    if league is not None and LEAGUE in state:
        league.load_state_dict(state[LEAGUE])
        for name in league.copies():
            adapters.add_frozen(loaded.adapter, name, place / name)


def _games(logged: Mapping[str, Mapping[int, Any]]) -> Iterator[Played]:
    """The step's games against weights that are not trained, each once."""
    seen = set[int]()
    for uid, score in logged.get("score", {}).items():
        game = logged["episode"][uid]
        if game not in seen:
            seen.add(game)
            own, others = logged["adapter"][uid], logged["opponent"][uid]
            yield Played(tuple(own.split(", ")), tuple(others.split(", ")), score)
