"""Builds everything that a run needs from its configuration; every check comes before step 1."""

import functools
import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from strop.batch.columns import slow_value
from strop.data.prompt_rows import pool_of
from strop.data.read import validation_sets
from strop.engines.base import Engine
from strop.engines.open import EngineSettings, read
from strop.engines.pool.one_for_all import SharedEngine
from strop.engines.pool.one_per_process import ParallelEngine
from strop.engines.pool.pool import EnginePool
from strop.environments.data_files import load_data
from strop.environments.tasks import Task, load_task
from strop.environments.verifiers_server import FAMILY as VERIFIERS
from strop.method import part as parts
from strop.method.algorithm import Method
from strop.method.chains import number_of
from strop.method.engine_needs import check as check_engine
from strop.method.engine_needs import check_trainable
from strop.method.part import COPIES
from strop.parts.sampling.draw_from_sources import DrawFromSources, sources_of
from strop.rewards.grader import Grader
from strop.rewards.source import RewardSpec, reward_name, reward_names
from strop.support.errors import UserError
from strop.training import roles, rows
from strop.training.cluster.engine_actors import open_pool
from strop.training.cluster.rewards import open_grader
from strop.training.collect.here import SynchronousCollector
from strop.training.learner import prefix_sharing, routing
from strop.training.learner.critic import Critic, make_critic
from strop.training.learner.models import Loaded, Remote
from strop.training.learner.policy import MasterAdamW, Policy
from strop.training.learner.weight_copies import WeightCopies
from strop.training.loading import open_engine
from strop.training.parallel import shards
from strop.training.parallel.ranks import ALONE, Ranks
from strop.training.playing import open_environment_workers
from strop.training.record import checkpoint
from strop.training.references import reference_of, served_of
from strop.training.services.agents import AT_ONCE
from strop.training.services.run import NoGrader, RunGrading, RunServices, serve
from strop.training.services.texts import Limits, resolve
from strop.training.settings.config import SMALL, RunConfig
from strop.training.settings.sections import CriticSettings, DataSettings, RewardSettings
from strop.training.world import World


def load_prompts(
    data: DataSettings, reward: RewardSettings, needs_reward: bool = True,
    heldout: bool = True, uses_columns: bool = False,
) -> Task:  # fmt: skip
    """Prompts and reward functions, equal for every seed of a run, so that runs of several seeds
    are judged on the same rows, none of which another one has trained on. Raises UserError.

    needs_reward: refuse a task whose answers nothing scores. heldout: False leaves out the held-out
    episodes of an environment, where nobody reads them. uses_columns: as in `load_data`.
    """
    _check_task(data)
    if data.files:
        rows_of_files = _from_files(data, uses_columns)
        task = replace(rows_of_files, agent=data.agent(), agent_options=data.task_config)
    else:
        unread = not heldout and data.environment() is not None
        task = load_task(
            data.task,
            num_train=data.train_size or None,
            num_validation=data.validation_size or None,
            num_heldout=0 if unread else data.heldout_size or None,
            config=data.task_config,
            weights=data.weights,
        )
    if task.is_recorded:
        task = _validated_beside(task, data, reward)
    if reward.functions:
        task = replace(task, rewards=_specs(reward), reward_range=None)
    if needs_reward and not task.rewards and not task.own_reward:
        raise UserError(
            "nothing scores the answers: give a reward function with --reward file.py:function, "
            "or a built-in such as math_verify"
        )
    return task


def _check_task(data: DataSettings) -> None:
    """Raise UserError for files beside a task that reads none."""
    if data.files and (data.task or data.task_config) and not data.agent():
        given = f"data.task={data.task}" if data.task else "data.task_config"
        raise UserError(
            f"{given} beside data.files: the files are the task, and an agent alone takes both; "
            "leave one of the two out"
        )
    if data.files and data.task_config and not data.task.startswith(VERIFIERS):
        raise UserError(
            f"data.task_config beside data.files: {data.task} is called with the rows of the files "
            "alone: make it a column of theirs, or leave it out"
        )
    recorded = data.has_traces() or data.is_live()
    if data.validation_files and not (data.files or recorded):
        raise UserError(
            f"data.validation_files: {data.task} has validation prompts of its own "
            "(data.validation_size); give files or recorded rollouts to train on, or leave them out"
        )


def _validated_beside(task: Task, data: DataSettings, reward: RewardSettings) -> Task:
    """The task of recorded rollouts with validation prompts, for which answers are sampled.

    Raises UserError where nothing scores the rollouts.
    """
    if task.traces is not None and not reward.functions:
        task.traces.check_rewards()
    if not data.validation_files:
        return task
    plain, named = validation_sets(data.validation_files)
    if plain and task.validation:
        raise UserError(
            "data.validation_size sets groups aside, and the validation file would take their "
            "name: give the file one, NAME=FILE, or leave one of the two out"
        )
    first = plain or next(iter(named.values()))
    found = load_data(
        first, validation=plain or 0, reader=data.reader, prompt_column=data.prompt_column,
        columns=data.columns, sets=named,
    )  # fmt: skip
    aside = task.validation or found.validation
    return replace(task, validation=aside, sets=found.sets, answer=found.answer)


def _from_files(data: DataSettings, uses_columns: bool) -> Task:
    """The task of the user's files; without a validation file, `validation_size` rows are set aside
    from the training data.
    """
    plain, named = validation_sets(data.validation_files)
    carved = 0 if named else data.validation_size
    task = load_data(
        data.files,
        validation=plain or carved,
        heldout=data.heldout_size,
        reader=data.reader,
        prompt_column=data.prompt_column,
        columns=data.columns,
        sets=named,
        weights=data.weights,
        uses_columns=uses_columns,
    )
    if data.validation_files and (most := data.validation_size):
        sets = {name: prompts[:most] for name, prompts in task.sets.items()}
        task = replace(task, validation=task.validation[:most], sets=sets)
    return _first_rows(task, data.train_size) if data.train_size else task


def _first_rows(task: Task, number: int) -> Task:
    """The task with its first training rows, and a note of the sources that have none of them."""
    train = task.train[:number]
    begins = [0, *(origin.end for origin in task.origins)]
    unread = [
        origin.name
        for origin, begin in zip(task.origins, begins, strict=False)
        if not len(train) or train[-1].uid < begin
    ]
    if not unread:
        return replace(task, train=train)
    note = (
        f"data.train_size={number} takes the first rows, and none of {', '.join(unread)}: raise "
        "it, or leave those files out"
    )
    return replace(task, train=train, notes=(*task.notes, note))


def _specs(reward: RewardSettings) -> tuple[RewardSpec, ...]:
    weights = reward.weights or (1.0,) * len(reward.functions)
    if len(weights) != len(reward.functions):
        raise UserError(
            f"reward.weights has {len(weights)} numbers for {len(reward.functions)} functions"
        )
    names = reward_names(reward.functions)
    return tuple(map(RewardSpec, names, reward.functions, weights))


def make_services(
    config: RunConfig, loaded: Loaded, task: Task, rollout: Any, longest_given: int | None = None,
    ranks: Ranks = ALONE,
) -> RunServices:  # fmt: skip
    """Prompts, tokenizer and grader of a run with this rollout part.

    longest_given: as in `limits.resolve`. Raises UserError for a reward function that cannot be
    used and limits that leave no room.
    """
    chat = rows.chat_of(config.data, task, loaded.tokenizer)
    task = rows.put(task, loaded.tokenizer, chat)
    limits = resolve(rollout, task, loaded.context, config.data.max_prompt_tokens, longest_given)
    grader: Grader | NoGrader = NoGrader()
    if task.rewards:
        grader = open_grader(config, task.rewards, ranks)
    ends = task.environment.stop_strings if task.environment is not None else ()
    services = serve(
        task,
        loaded.tokenizer,
        grader,
        limits,
        stop_strings=(*config.data.stop_strings, *ends),
        stop_ids=loaded.stop_ids,
        end_ids=loaded.end_ids,
        chat=chat,
    )
    services.sampling.cast = roles.cast_of(config)
    services.agents.limits = services.episodes.limits = config.data.env_limits()
    services.live.max_staleness = config.training.max_staleness
    services.agents.at_once = config.data.env_workers or AT_ONCE
    counts = config.reward.on_failure
    services.grading.on_failure = None if isinstance(counts, str) else counts
    try:
        services.notes += services.grading.check_rewards()
    except BaseException:
        grader.close()
        raise
    return services


def open_judges(
    config: RunConfig, services: RunServices, ranks: Ranks, needed: bool = True
) -> None:
    """Open the graders that score validation sets and held-out prompts in place of the reward.
    Raises UserError. needed: False where a set may have no score, as with given answers.

    A source that scores several sets is opened once.
    """
    task, opened = services.task, dict[str, RunGrading]()
    sets = {**task.validations, **({"heldout": task.heldout} if task.heldout else {})}
    for name, source in config.evaluation.judges([*sets]).items():
        if source in opened:
            services.judges[name] = opened[source]
            continue
        grader = open_grader(config, [RewardSpec(reward_name(source), source, 1.0)], ranks)
        opened[source] = services.judges[name] = services.judged_by(grader, sets[name])
        services.notes += opened[source].check_rewards()
    unscored = (sets if task.is_recorded else task.validations).keys() - services.judges.keys()
    own = not task.is_recorded and (task.own_reward or not needed)
    if unscored and not task.rewards and not own:
        raise UserError(
            "validation samples answers, which nothing scores: give a reward function that does, "
            "--reward NAME or evaluation.reward=NAME, or leave validation out"
        )


def make_world(
    config: RunConfig,
    method: Method,
    loaded: Loaded,
    task: Task,
    ranks: Ranks = ALONE,
    learns: bool = True,
) -> World:
    """Policy, reference, engine and services of a run. Raises UserError.

    learns: False makes only what stages 1 to 4 need, without optimiser, reference or critic.
    """
    roles.check(config, method, task, ranks)
    _check_turns(method, task)
    rollouts = [algorithm.rollout.part for algorithm in method.algorithms]
    longest = _longest_given(config, task, loaded, rollouts[0])
    services = make_services(config, loaded, task, rollouts[0], longest, ranks)
    try:
        if learns:
            open_judges(config, services, ranks, not any(each.given for each in rollouts))
        apart = learns and config.training.max_staleness > 0
        open_environment_workers(config, services, ranks, apart)
        limits = (services.limits, *_limits(config, services.task, loaded, rollouts[1:]))
        for rollout, each in zip(rollouts, limits, strict=True):
            services.limit_to(each)
            rows.settle(config, services, rollout)
        if config.data.overlong == "drop" and any(rollout.given for rollout in rollouts):
            # the rows that were left out set no limit
            limits = _limits(config, services.task, loaded, rollouts)
        for each in limits:
            services.limit_to(each)
            rows.check_longest(config, services)
        if loaded.generation is not None:  # for those who sample the checkpoints or the export
            drawn = rollouts[0].max_tokens or services.task.max_tokens
            most = max(each.episode_tokens for each in limits) if longest is None else drawn
            loaded.generation.max_new_tokens = most
        _check_sources(method, services)
        rows.add_notes(config, services)
        return _world(config, method, loaded, services, limits, ranks, learns)
    except BaseException:
        services.close()
        raise


def _longest_given(config: RunConfig, task: Task, loaded: Loaded, rollout: Any) -> int | None:
    prompts = itertools.chain(task.train, rows.validated(config, task))
    chat = rows.chat_of(config.data, task, loaded.tokenizer)
    return rows.longest_given(
        rollout, prompts, loaded.tokenizer, len(loaded.end_ids), chat, loaded.stop_ids
    )


def _limits(
    config: RunConfig, task: Task, loaded: Loaded, rollouts: Sequence[Any]
) -> tuple[Limits, ...]:
    """The limits of each phase, from the rows of the task. Raises UserError."""
    return tuple(
        resolve(rollout, task, loaded.context, config.data.max_prompt_tokens,
                _longest_given(config, task, loaded, rollout))
        for rollout in rollouts
    )  # fmt: skip


def _check_sources(method: Method, services: RunServices) -> None:
    """Raise UserError for a source that a part draws from, of which no training row is left."""
    if any(isinstance(use.part, DrawFromSources) for _, use in method.uses()):
        pool: Any = pool_of(services.task.train)
        sources_of(pool, services.texts)


def _check_turns(method: Method, task: Task) -> None:
    """Raise UserError for recorded rollouts of several turns where a part grades one answer."""
    if task.traces is None or all(group.most_turns < 2 for group in task.traces.groups):
        return
    for path, use in method.uses():
        if "grades_one_answer" in parts.facts(use):
            raise UserError(
                f"{path} grades texts as one answer, and rollouts of {task.traces.name} "
                "have several turns: leave these out, or take another method"
            )


def _world(
    config: RunConfig,
    method: Method,
    loaded: Loaded,
    services: RunServices,
    limits: tuple[Limits, ...],
    ranks: Ranks,
    learns: bool,
) -> World:
    """Policy and engine, and beside them what learns, with the services. Raises UserError."""
    if loaded.model.dtype == torch.float16:
        raise UserError("float16 gradients vanish below 6e-8: train with model.dtype=bfloat16")
    policy, training = _policy(config, loaded, services, ranks), config.training
    settings, apart = config.engine, learns and training.max_staleness > 0
    if apart and settings.kind != "local":
        settings = read({})  # the collector's process uses the run's own
    engine = _engine(config, settings, loaded, ranks, apart)
    with ExitStack() as failing:
        failing.callback(engine.close)
        failing.callback(policy.close)
        check_trainable(engine, settings.kind)
        check_engine(method.uses(), engine, settings.kind)
        roles.check_engine(config, engine)
        routing.check(config.model.router_replay, method.reads(), policy, engine, settings.kind)
        services.notes += [*engine.notes, *(_uncorrected_age(config, method) if learns else ())]
        reference = reference_of(config, method, policy, loaded) if learns else None
        if not ranks.alone:
            engine = _share_out(policy, reference, engine, loaded)
        if learns:
            services.sampling.cast.league = roles.league_of(config)
            policy.optimiser = policy.optimiser or MasterAdamW(
                list(policy.parameters()),
                lr=0.0,
                betas=training.betas,
                weight_decay=training.weight_decay,
            )
        services.sampling.attach(engine)
        world = World(
            policy,
            reference,
            engine,
            services,
            pool_of(services.task.train),
            config.seed,
            training.steps,
            config.lr(),
            SynchronousCollector(),
            _critic(config, method, policy, services.notes) if learns else None,
            limits,
            served_of(config, method, loaded) if learns else None,
        )
        if learns:
            _keep_copies(config, method, world)
        world.act(method.in_phase(1).at_step(1, training.steps))
        failing.pop_all()
    return world


def _policy(config: RunConfig, loaded: Loaded, services: RunServices, ranks: Ranks) -> Policy:
    """The policy, in this process or on the service that trains the model."""
    training = config.training
    if isinstance(loaded, Remote):
        return loaded.policy(training)
    return Policy(
        loaded.model,
        token_budget=training.tokens_on(loaded.model.device.type),
        share=_share(training.share_prefixes, loaded.model, services),
        max_grad_norm=training.max_grad_norm,
        ranks=ranks,
        adapters=loaded.names,
        replay=routing.REPLAYED[config.model.router_replay],
    )


def _engine(
    config: RunConfig, settings: EngineSettings, loaded: Loaded, ranks: Ranks, apart: bool
) -> Engine:
    """The engine that this process samples with; several processes share one that is not local.

    apart: another process collects.
    """
    if config.ray.address and not apart:
        return open_pool(config, loaded, ranks)

    def begin() -> Engine:
        return open_engine(config, settings, loaded)

    return begin() if ranks.alone or settings.kind == "local" else SharedEngine(begin, ranks)


def _share(when: prefix_sharing.When, model: Any, services: RunServices) -> prefix_sharing.When:
    """When prefixes are shared: as the setting says if the model can, else never, with a note.

    Raises UserError for the setting `on` and a model that cannot.
    """
    reason = prefix_sharing.why_not(model) if when != "off" else ""
    if not reason:
        return when
    if when == "on":
        raise UserError(
            f"training.share_prefixes=on: {type(model).__name__} cannot, {reason}; leave it out"
        )
    services.notes.append(
        f"the common prefixes of rollouts are computed for each of them: {type(model).__name__} "
        f"cannot share them, {reason}"
    )
    return "off"


def _uncorrected_age(config: RunConfig, method: Method) -> tuple[str, ...]:
    """A note where answers are older than the policy, and no term weighs them by what drew them."""
    age = config.training.max_staleness or getattr(config.engine, "staleness", 0)
    if not age or any("logp_behavior_T" in each.reads(("terms",)) for each in method.algorithms):
        return ()
    return (
        f"answers are up to {age} steps old, and the method treats them as the policy's own: "
        "docs/STALENESS.md names methods and parts that correct for their age",
    )


def _critic(config: RunConfig, method: Method, policy: Policy, notes: list[str]) -> Critic | None:
    """A critic with the heads that the method's terms train; None when there are none. Then a note
    names the settings of a critic that are not the usual ones.

    Raises UserError for a `critic.start` with other heads, or where there is no critic.
    """
    columns = method.value_columns()
    if not columns:
        if config.critic.start:
            raise UserError("critic.start: the method has no critic, leave it out")
        # A file of settings, as of a sequence, keeps those of the model that it was written for.
        usual = (CriticSettings(), CriticSettings(**SMALL["critic"]))
        own = [k for k, v in config.critic if all(v != getattr(each, k) for each in usual)]
        if own:
            void = ", ".join(f"critic.{key}" for key in own)
            notes.append(f"the method has no critic: without effect are {void}")
        return None
    reads_slow = bool({slow_value(column) for column in columns} & method.reads())
    critic = make_critic(
        columns,
        policy,
        hidden_size=config.critic.hidden_size,
        lr=config.critic_lr(),
        betas=config.training.betas,
        max_grad_norm=config.training.max_grad_norm,
        seed=number_of(config.seed, 0, "critic"),
        target_tau=config.critic.target_tau if reads_slow else 0.0,
    )
    if config.critic.start:
        place = Path(config.critic.start)
        state = checkpoint.read(place, "critic.pt")
        with checkpoint.naming_the_file(place, "critic.pt"):
            critic.load_state_dict(state)
    return critic


def _keep_copies(config: RunConfig, method: Method, world: World) -> None:
    """Make the copies of the weights that the method's controls move. Raises UserError for an
    explorer that no part explores with, or that the run's engine cannot sample with.
    """
    facts, copies = method.facts(), WeightCopies(world.policy)
    if facts & {f"moves_{name}" for name in COPIES}:
        world.copies = copies
    if "moves_reference" in facts:
        assert world.reference is not None, "a reference that is renewed is read"
        copies.watch("reference", world.reference)
    if "moves_anchor" in facts:
        copies.keep("anchor")
    if "moves_explorer" not in facts:
        return
    where = {
        "several processes": not world.ranks.alone,
        "training.max_staleness": config.training.max_staleness > 0,
        "engine.staleness": getattr(config.engine, "staleness", 0) > 0,
        f"engine.kind={config.engine.kind}": config.engine.kind != "local",
    }
    for what, given in where.items():
        if given:
            raise UserError(f"control: average_explorer does not go with {what}: leave it out")
    if "explores" not in facts:
        raise UserError(
            "control: average_explorer: no part explores with the average: take "
            "rollout=explore_then_regenerate, or leave it out"
        )
    copies.keep("explorer")
    world.services.sampling.exploring = functools.partial(copies.exploring, world.engine)


def _share_out(policy: Policy, reference: Policy | None, engine: Engine, loaded: Loaded) -> Engine:
    """Shard the policy's weights; if every process has an engine, distribute requests over them."""
    model, adapter, shell = shards.trained_copy(loaded)
    if reference is not None and reference.model is policy.model:
        reference.model, reference.switch = model, adapter.disable_adapter
    policy.model, policy.shell = model, shell
    if isinstance(engine, EnginePool | SharedEngine):
        engine.shell = shell
        return engine
    return ParallelEngine(engine, policy.ranks, shell)
