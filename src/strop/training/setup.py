"""Builds everything that a run needs from its configuration; every check comes before step 1."""

import copy
import itertools
from dataclasses import replace
from typing import Any

import torch

from strop._garbage import begun
from strop.columns import slow_value
from strop.errors import UserError
from strop.phases import Method
from strop.rollout.engines.base import Engine
from strop.rollout.engines.dealt import DealtEngine
from strop.rollout.engines.fleet import FleetEngine
from strop.rollout.engines.heard import HeardEngine
from strop.rollout.engines.needs import check as check_engine
from strop.rollout.engines.needs import check_trainable, check_whole
from strop.rollout.engines.open import EngineSettings, read
from strop.tasks.data_files import load_data
from strop.tasks.data_sources import validation_sets
from strop.tasks.grader import Grader
from strop.tasks.prompt_rows import pool_of
from strop.tasks.reward_source import reward_name
from strop.tasks.task import RewardSpec, Task, load_task
from strop.training import adapters, models, rows, seeds, shards, sharing
from strop.training.adapters import Lora
from strop.training.cluster.environments import open_stage
from strop.training.cluster.rewards import maker
from strop.training.config import RunConfig
from strop.training.critic import Critic, make_critic
from strop.training.limits import Limits, resolve
from strop.training.models import Loaded
from strop.training.optimiser import MasterAdamW
from strop.training.policy import Policy
from strop.training.ranks import Ranks
from strop.training.refresh import freeze
from strop.training.services.grading import NoGrader
from strop.training.services.run import RunServices, serve
from strop.training.settings import DataSettings, RewardSettings
from strop.training.shared_grader import shared_grader
from strop.training.world import World


def device_of(name: str) -> str:
    """The device to train on; "auto" takes a GPU where there is one. Raises UserError."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"model.device = {name!r} cannot be used here: {first}") from error
    return name


def load_model(
    config: RunConfig, source: str = "", weights: bool = True, ranks: Ranks | None = None,
    given: Loaded | None = None,
) -> Loaded:  # fmt: skip
    """The run's model and tokenizer; its head is checked. Raises UserError.

    source: a checkpoint of the run, or any model or adapter, to load in place of the start.
    weights: without them the model only tells its sizes and tokens. ranks: the processes of a run,
    each with a device of its own. given: the model, where it is in memory already.
    """
    settings = config.model
    name, lora, adapter = source or settings.name, None, ""
    if source and adapters.is_adapter(source):
        adapter = source
        name = adapters.base_of(source) if settings.name == source else settings.name
    elif not source and settings.lora_rank:
        lora = Lora(settings.lora_rank, settings.lora_alpha, settings.lora_targets)
    if not weights:
        tokenizer = models.tokenizer_of(name, settings.chat_template)
        return Loaded(models.skeleton(name), tokenizer, name)
    options: dict[str, Any] = {
        "device": (ranks or Ranks()).device(device_of(settings.device)),
        "gradient_checkpointing": settings.gradient_checkpointing,
        "chat_template": settings.chat_template,
        "lora": lora,
        "adapter": adapter,
        "onednn": settings.onednn,
        "seed": config.seed,
    }
    if given is not None:
        loaded = models.ready(given, **options)
    else:
        loaded = models.load(name, dtype=settings.dtype, attention=settings.attention, **options)
    begun()
    models.check_head(loaded.model)
    return loaded


def load_prompts(
    data: DataSettings, reward: RewardSettings, seed: int, needs_reward: bool = True,
    heldout: bool = True,
) -> Task:  # fmt: skip
    """Prompts and reward functions. Raises UserError.

    needs_reward: refuse a task whose answers nothing scores. heldout: False where nobody reads the
    held-out episodes of an environment, which are not begun then.
    """
    if data.files:
        task = _from_files(data, seed)
    else:
        unread = not heldout and data.environment() is not None
        task = load_task(
            data.task,
            seed=seed,
            num_train=data.train_size or None,
            num_validation=data.validation_size or None,
            num_heldout=0 if unread else data.heldout_size or None,
            config=data.task_config,
        )
    if reward.functions:
        task = replace(task, rewards=_specs(reward), reward_range=None, reward_values=())
    if needs_reward and not task.rewards and task.environment is None:
        raise UserError(
            "nothing scores the answers: give a reward function with --reward file.py:function, "
            "or a built-in such as math_verify"
        )
    return task


def _from_files(data: DataSettings, seed: int) -> Task:
    """The task of the user's files; `validation_size` rows are carved off without a file."""
    plain, named = validation_sets(data.validation_files)
    carved = 0 if named else data.validation_size
    task = load_data(
        data.files,
        validation=plain or carved,
        heldout=data.heldout_size,
        seed=seed,
        reader=data.reader,
        prompt_column=data.prompt_column,
        columns=data.columns,
        sets=named,
        weights=data.weights,
    )
    if data.validation_files and (most := data.validation_size):
        sets = {name: prompts[:most] for name, prompts in task.sets.items()}
        task = replace(task, validation=task.validation[:most], sets=sets)
    return replace(task, train=task.train[: data.train_size]) if data.train_size else task


def _specs(reward: RewardSettings) -> tuple[RewardSpec, ...]:
    weights = reward.weights or (1.0,) * len(reward.functions)
    if len(weights) != len(reward.functions):
        raise UserError(
            f"reward.weights has {len(weights)} numbers for {len(reward.functions)} functions"
        )
    names = [reward_name(source) for source in reward.functions]
    return tuple(
        RewardSpec(name, source, weight)
        for name, source, weight in zip(names, reward.functions, weights, strict=True)
    )


def make_services(
    config: RunConfig, loaded: Loaded, task: Task, rollout: Any, longest_given: int | None = None,
    ranks: Ranks | None = None,
) -> RunServices:  # fmt: skip
    """Prompts, tokenizer and grader of a run with this rollout part.

    longest_given: as in `limits.resolve`. Raises UserError for a reward function that cannot be
    used and limits that leave no room.
    """
    chat = config.data.chat()
    task = rows.put(task, loaded.tokenizer, chat)
    limits = resolve(rollout, task, loaded.context, config.data.max_prompt_tokens, longest_given)
    grader: Grader | NoGrader = NoGrader()
    if task.rewards:
        grader = shared_grader(
            ranks or Ranks(),
            task.rewards,
            maker(config.ray),
            timeout_seconds=config.reward.timeout_seconds,
            num_workers=config.reward.num_workers,
        )
    services = serve(
        task,
        loaded.tokenizer,
        grader,
        limits,
        stop_strings=config.data.stop_strings,
        stop_ids=loaded.stop_ids,
        end_ids=loaded.end_ids,
        chat=chat,
    )
    try:
        services.grading.check_rewards()
    except BaseException:
        grader.close()
        raise
    return services


def open_engine(config: RunConfig, settings: EngineSettings, loaded: Loaded) -> Engine:
    """The run's engine, by its settings or others of the same kind. Raises UserError."""
    engine = settings.open(
        loaded.model if settings.needs_model else None,
        loaded.tokenizer,
        num_slots=config.training.num_slots,
        context_length=loaded.context,
    )
    check_whole(engine, settings.kind)
    return engine


def make_world(
    config: RunConfig,
    method: Method,
    loaded: Loaded,
    task: Task,
    ranks: Ranks | None = None,
    learns: bool = True,
) -> World:
    """Policy, reference, engine and services of a run. Raises UserError.

    learns: without it there is what stages 1 to 4 need: no optimiser, reference or critic.
    """
    ranks = ranks or Ranks()
    rollouts = [algorithm.rollout.part for algorithm in method.algorithms]
    longest = [
        rows.longest_given(
            rollout, itertools.chain(task.train, rows.validated(config, task)), loaded
        )
        for rollout in rollouts
    ]
    services = make_services(config, loaded, task, rollouts[0], longest[0], ranks)
    try:
        if not (learns and config.training.max_staleness):  # else the process that collects has it
            services.episodes.stage = open_stage(config.ray, task.environment, ranks)
        most, asked = loaded.context, config.data.max_prompt_tokens
        later = zip(rollouts[1:], longest[1:], strict=True)
        limits = (
            services.limits,
            *(resolve(rollout, services.task, most, asked, given) for rollout, given in later),
        )
        for rollout, each in zip(rollouts, limits, strict=True):
            services.limit_to(each)
            rows.settle(config, services, rollout)
            rows.check_longest(config, services, rollout)
        rows.tell(config, services)
        return _world(config, method, loaded, services, limits, ranks, learns)
    except BaseException:
        services.close()
        raise


def _world(
    config: RunConfig,
    method: Method,
    loaded: Loaded,
    services: RunServices,
    limits: tuple[Limits, ...],
    ranks: Ranks,
    learns: bool,
) -> World:
    training, task = config.training, services.task
    if loaded.model.dtype == torch.float16:
        raise UserError("float16 gradients vanish below 6e-8: train with model.dtype=bfloat16")
    policy = Policy(
        loaded.model,
        token_budget=training.tokens_on(loaded.model.device.type),
        share=_share(training.share_prefixes, loaded.model, services),
        max_grad_norm=training.max_grad_norm,
        ranks=ranks,
    )
    settings = config.engine
    if learns and training.max_staleness and settings.kind != "local":
        settings = read({})  # the other process has the run's own
    engine = _engine(config, settings, loaded, ranks, apart=learns and training.max_staleness > 0)
    check_trainable(engine, settings.kind)
    check_engine(method.uses(), engine, settings.kind)
    services.notes += engine.notes
    reference = _reference(method, policy, loaded) if learns else None
    if not ranks.alone:
        engine = _share_out(policy, reference, engine, loaded)
    if learns:
        policy.optimiser = MasterAdamW(
            list(policy.parameters()),
            lr=0.0,
            betas=training.betas,
            weight_decay=training.weight_decay,
        )
    services.attach(engine)
    critic = _critic(config, method, policy) if learns else None
    world = World(
        policy,
        reference,
        engine,
        services,
        pool_of(task.train),
        config.seed,
        training.steps,
        config.lr(),
        critic,
        limits,
    )
    world.act(method.in_phase(1).at_step(1, training.steps))
    return world


def _engine(
    config: RunConfig, settings: EngineSettings, loaded: Loaded, ranks: Ranks, apart: bool
) -> Engine:
    """The engine that this process samples with; one outside several processes is heard by all.

    apart: another process collects.
    """
    if config.ray.address and not apart:
        from strop.training.cluster.fleet import open_fleet

        return open_fleet(config, loaded, ranks)

    def begin() -> Engine:
        return open_engine(config, settings, loaded)

    return begin() if ranks.alone or settings.kind == "local" else HeardEngine(begin, ranks)


def _share(when: sharing.When, model: Any, services: RunServices) -> sharing.When:
    """When prefixes are shared: as asked for where the model can, else never, with a note.

    Raises UserError for a model that is told to and cannot.
    """
    reason = sharing.why_not(model) if when != "off" else ""
    if not reason:
        return when
    if when == "on":
        raise UserError(
            f"training.share_prefixes=on: {type(model).__name__} cannot, {reason}; leave it out"
        )
    services.notes.append(
        f"what rollouts begin with alike is computed for each: {type(model).__name__} cannot "
        f"share it, {reason}"
    )
    return "off"


def _critic(config: RunConfig, method: Method, policy: Policy) -> Critic | None:
    """A critic with the heads that the method's terms train; None when there are none."""
    columns = method.value_columns()
    if not columns:
        return None
    reads_slow = bool({slow_value(column) for column in columns} & method.reads())
    return make_critic(
        columns,
        policy,
        hidden_size=config.critic.hidden_size,
        lr=config.critic_lr(),
        betas=config.training.betas,
        max_grad_norm=config.training.max_grad_norm,
        seed=seeds.number(config.seed, 0, "critic"),
        target_tau=config.critic.target_tau if reads_slow else 0.0,
    )


def _reference(method: Method, policy: Policy, loaded: Loaded) -> Policy | None:
    """The policy of the starting weights, when something reads it: a frozen copy, or the same
    model with its adapters off. One that is to be renewed is always a copy.

    Raises UserError for one that is renewed and not read.
    """
    reads, renews = method.reads(), "renews_reference" in method.facts()
    if not {"logp_ref_T", "logq_ref_TV"} & reads:
        if renews:
            raise UserError(
                "control: renew_reference has nothing to renew, no part reads a reference policy: "
                "leave it out, or add a penalty such as penalise_kl_to_reference"
            )
        return None
    if loaded.adapter is not None and not renews:
        model, switch = loaded.model, loaded.without_adapter
        return Policy(model, policy.token_budget, policy.share, switch=switch, ranks=policy.ranks)
    frozen: Any = policy.ranks.shard(freeze(copy.deepcopy(policy.model)))
    return Policy(frozen, policy.token_budget, policy.share, ranks=policy.ranks)


def _share_out(policy: Policy, reference: Policy | None, engine: Engine, loaded: Loaded) -> Engine:
    """Put the policy's weights in shards; requests of an engine of each process are dealt out."""
    model, adapter, shell = shards.trained_copy(loaded)
    if reference is not None and reference.model is policy.model:
        reference.model, reference.switch = model, adapter.disable_adapter
    policy.model, policy.shell = model, shell
    if isinstance(engine, FleetEngine):
        engine.ready = shell.whole
        return engine
    if isinstance(engine, HeardEngine):
        engine.shell = shell
        return engine
    return DealtEngine(engine, policy.ranks, shell)
