"""Tasks: prompts in three splits, the rewards that score answers, and facts about them."""

import functools
import importlib
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from strop.data.prompts import MAX_SPLIT_ROWS, Origin, Prompt, number_rows
from strop.rewards.source import RewardSpec
from strop.support.errors import UserError, did_you_mean, needs_extra
from strop.support.exits import Exit
from strop.support.loading import attribute

if TYPE_CHECKING:
    from strop.environments.base import Environment, EnvironmentSource
    from strop.environments.episodes import Episodes
    from strop.environments.mixture import Mixture
    from strop.traces.files import Group, Traces

OWN = ("countdown", "worked_countdown")  # puzzles that come with strop, each with its model
# Arguments that a reward receives beside the columns, so a column may not have these names.
RESERVED = frozenset(
    ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
)
QUEUE = "queue:"  # precedes a folder into which other programs put files of rollouts


@dataclass(frozen=True)
class LiveSource:
    """Where a run accepts rollouts that clients post while it trains: an address, and perhaps a
    folder. port 0: any free port.
    """

    host: str = "127.0.0.1"
    port: int = 0
    folder: str = ""


@dataclass(frozen=True)
class Task:
    """Prompts in three disjoint splits, rewards, and what recipes may rely on."""

    name: str
    train: Sequence[Prompt]
    validation: Sequence[Prompt]
    heldout: Sequence[Prompt]
    rewards: tuple[RewardSpec, ...]  # may be empty where an environment gives rewards
    answer: str = ""  # "module:function": completion -> text of the final answer, or None
    max_tokens: int = 1024  # default length of a completion, tokens
    reward_range: tuple[float, float] | None = None  # of the weighted sum; None: unknown
    environment: "EnvironmentSource | None" = None  # the environment of the episodes
    traces: "Traces | None" = None  # recorded rollouts, a group for each training prompt
    live: LiveSource | None = None  # where rollouts arrive while the run trains
    agent: str = ""  # the function that is called for each rollout, "file.py:function"
    agent_options: Mapping[str, Any] = field(default_factory=dict)  # of a server in its place
    origins: tuple[Origin, ...] = ()  # of the training prompts, where they have several
    sets: Mapping[str, Sequence[Prompt]] = field(default_factory=dict)  # of validation, by name
    notes: tuple[str, ...] = ()  # what is easily overlooked, said when a run begins

    @property
    def own_reward(self) -> str:
        """Name of the reward that rollouts contain themselves; empty where functions score them."""
        if self.environment is not None:
            return "environment"
        if self.agent:
            return "agent"
        return "recorded" if self.is_recorded else ""

    @property
    def is_recorded(self) -> bool:
        """Whether the task trains on rollouts that other programs made."""
        return self.traces is not None or self.live is not None

    @property
    def validations(self) -> dict[str, Sequence[Prompt]]:
        """Every non-empty validation set, by its name."""
        every = {"validation": self.validation, **self.sets}
        return {name: prompts for name, prompts in every.items() if prompts}

    @property
    def splits(self) -> dict[str, Sequence[Prompt]]:
        """The prompts of every split, by its name."""
        theirs = {"train": self.train, "validation": self.validation, "heldout": self.heldout}
        return {**theirs, **self.sets}

    def final_answers(self, completions: Sequence[str]) -> list[str | None]:
        """The final answer of each completion, None where there is none.

        Raises UserError for a task that does not say what a final answer is.
        """
        if not self.answer:
            raise UserError(
                f"the task {self.name} does not say what an answer is, so answers cannot vote: "
                "take a method that reads the rewards"
            )
        read = attribute(self.answer)
        return [read(completion) or None for completion in completions]


def load_task(
    name: str,
    *,
    num_train: int | None = None,
    num_validation: int | None = None,
    num_heldout: int | None = None,
    config: Mapping[str, Any] | None = None,
    weights: Sequence[float] = (),
) -> Task:
    """Build a task by name: one of OWN, `reasoning_gym:DATASET`, `traces:FILE`,
    `agent:file.py:function`, an environment's.

    Omitted sizes are the task's own (all puzzles and rows of files; 1000, 100 and 100 generated
    rows or episodes). `config` applies to generated tasks and environments. `weights` say how often
    each environment of a mixture is drawn; its sizes are per environment.
    `strop.environments.data_files.load_data` reads files.

    Raises UserError for an unknown task or dataset, a size that the task cannot fill, and a
    configuration that the dataset or environment refuses.
    """
    from strop.environments.base import FAMILIES, JOINED, built_in, source_of

    sizes = {"train": num_train, "validation": num_validation, "heldout": num_heldout}
    for split, size in sizes.items():
        if size is not None and size < (split == "train"):
            raise UserError(f"task {name!r}: the size of the {split} split is {size}; make it more")
    environment = source_of(name, config)
    if environment is not None and JOINED in environment.name:
        return _mixture(environment, sizes, weights)
    if weights:
        raise UserError(f"data.weights has {len(weights)} numbers for one task: leave them out")
    if environment is not None:
        return _environment(environment, sizes)
    family, _, member = name.partition(":")
    builder = _FAMILIES.get(family)
    if builder is None:
        hint = did_you_mean(family, (*_FAMILIES, *FAMILIES, *built_in()))
        raise UserError(
            f"unknown task {name!r}{hint}; tasks are {', '.join(OWN)}, reasoning_gym:DATASET, "
            f"traces:FILE, agent:file.py:function, the environments {', '.join(built_in())} and "
            f"file.py:Class, those of other packages as {', '.join(FAMILIES.values())}, and data "
            "files are given as data"
        )
    return builder(member, sizes, config or {})


Sizes = Mapping[str, int | None]


def _puzzles(name: str, member: str, sizes: Sizes, config: Mapping[str, Any]) -> Task:
    """Build a task of OWN: its module has the splits of puzzles and scores answers."""
    if member or config:
        raise UserError(f"task {name} takes no dataset and no configuration, got {member!r}")
    module: Any = importlib.import_module(f"strop.environments.{name}")
    splits = dict[str, Any]()
    for position, (split, theirs) in enumerate(zip(sizes, module.SPLITS, strict=True)):
        rows = module.puzzles(theirs)
        size = len(rows) if sizes[split] is None else sizes[split]
        assert size is not None
        if size > len(rows):
            raise UserError(
                f"task {name} has {len(rows)} {split} puzzles, {size} were asked for: ask fewer"
            )
        splits[split] = number_rows(rows[:size], position)
    return Task(
        name=name,
        rewards=(RewardSpec("correct", f"{module.__name__}:correct", rows_are_independent=True),),
        answer=f"{module.__name__}:extract_answer",
        max_tokens=module.MAX_TOKENS,
        reward_range=(0.0, 1.0),
        **splits,
    )


def _reasoning_gym(member: str, sizes: Sizes, config: Mapping[str, Any]) -> Task:
    with needs_extra("tasks of reasoning_gym need the package reasoning-gym", "reasoning-gym"):
        from strop.environments import reasoning_gym  # the library takes two seconds to import

    rows = reasoning_gym.draw_splits(member, sizes, config)
    splits = dict[str, Any]()
    for position, split in enumerate(sizes):
        splits[split] = number_rows(rows[split], position, "question")
    score = f"{reasoning_gym.__name__}:score"
    return Task(
        name=f"reasoning_gym:{member}",
        rewards=(RewardSpec("correct", score, rows_are_independent=True),),
        answer="strop.rewards.answers:extract_answer",
        reward_range=(0.0, 1.0),
        **splits,
    )


def _agent(member: str, sizes: Sizes, config: Mapping[str, Any]) -> Task:
    """Build a task with one prompt per episode, whose row holds a seed for the agent's task."""
    from strop.environments.agents import agent_of

    for name in ("prompt", "seed"):
        if name in config:
            raise UserError(
                f"data.task_config has {name!r}, of which each row of agent:{member} has its own: "
                "choose another name, or give your rows by --data"
            )
    splits = dict[str, Any]()
    for position, split in enumerate(sizes):
        rows = [{"prompt": str(n), "seed": n, **config} for n in _seeds(sizes, split)]
        splits[split] = number_rows(rows, position)
    agent = agent_of(f"agent:{member}") or ""
    return Task(name=f"agent:{member}", rewards=(), agent=agent, **splits)


def _verifiers(member: str, sizes: Sizes, config: Mapping[str, Any]) -> Task:
    """Raise UserError: the server has no list of tasks, it plays the rows of files."""
    raise UserError(
        f"data.task=verifiers:{member} plays tasks that you give: the rows of --data, each a "
        "TaskData of its taskset, as docs/OTHER_ENVIRONMENTS.md says"
    )


def _traces(member: str, sizes: Sizes, config: Mapping[str, Any]) -> Task:
    """Build a task with one prompt per group of recorded rollouts, which begin with its tokens."""
    from strop.traces.files import open_traces

    if member == "live" or member.startswith(QUEUE):
        return _live(member, sizes, config)
    if config:
        raise UserError("recorded rollouts take no data.task_config: leave it out")
    if sizes["heldout"]:
        raise UserError(
            "recorded rollouts are not sampled, so none are held out for strop eval: leave out "
            "data.heldout_size; data.validation_size sets groups aside"
        )
    aside = sizes["validation"] or 0
    traces = open_traces(member, None if aside else sizes["train"])
    groups = list(enumerate(traces.groups))
    if aside >= len(groups):
        raise UserError(
            f"data.validation_size={aside} leaves none of the {len(groups)} groups of {member} to "
            "train on: make it less"
        )
    held = set(random.Random("0/validation").sample(range(len(groups)), aside))
    trained = [each for each in groups if each[0] not in held][: sizes["train"]]
    return Task(
        name=f"traces:{Path(member).name}",
        rewards=(),
        max_tokens=max(group.most_output for group in traces.groups),
        traces=traces,
        train=[_of_group(uid, group) for uid, group in trained],
        validation=[_of_group(MAX_SPLIT_ROWS + uid, groups[uid][1]) for uid in sorted(held)],
        heldout=(),
    )


def _of_group(uid: int, group: "Group") -> Prompt:
    """The prompt with which a group of recorded rollouts begins."""
    return Prompt(uid, "", dict(group.columns), f"group {group.name}", ids=group.prompt)


def _live(member: str, sizes: Sizes, config: Mapping[str, Any]) -> Task:
    """Build a task whose one prompt stands for all posted rollouts.

    Samplers say how many groups a step takes.
    """
    for split in sizes:
        if sizes[split]:
            raise UserError(
                f"traces:{member} has no prompts of its own: leave out data.{split}_size"
            )
    folder = member.removeprefix(QUEUE) if member.startswith(QUEUE) else ""
    if member.startswith(QUEUE) and not folder:
        raise UserError("data.task=traces:queue: names no folder: give traces:queue:FOLDER")
    for name in config:
        if name not in ("host", "port"):
            hint = did_you_mean(name, ("host", "port"))
            raise UserError(f"traces:live has no option {name!r}{hint}: there are host and port")
    port = config.get("port", 0)
    if type(port) is not int or not 0 <= port < 2**16:
        raise UserError(f"data.task_config: port is {port!r}: give a whole number up to 65535")
    return Task(
        name=f"traces:{member}",
        rewards=(),
        live=LiveSource(str(config.get("host", LiveSource.host)), port, folder),
        train=[Prompt(0, "", {}, "the rollouts that are posted")],
        validation=(),
        heldout=(),
    )


def _environment(source: "EnvironmentSource", sizes: Sizes) -> Task:
    """Build a task with one prompt per episode: the environment's first text for a seed, which is
    the prompt's uid.
    """
    from strop.environments.base import sizes_of

    splits = dict[str, Any]()
    with source.opened() as reader:  # one environment reads the first text of every episode
        own = sizes_of(reader, source.name)
        for position, split in enumerate(sizes):
            rows = _first_rows(source, reader, _seeds(sizes, split, source.name, own))
            splits[split] = number_rows(rows, position)
    return Task(
        name=source.name,
        rewards=(),
        max_tokens=reader.max_turns * reader.max_tokens,
        reward_range=reader.reward_range,
        environment=source,
        notes=_about_validation(source.name, own),
        **splits,
    )


def _about_validation(name: str, own: Mapping[str, int] | None) -> tuple[str, ...]:
    """A note where an environment validates on the episodes of training."""
    if own is None or own.get("validation"):
        return ()
    return (
        f"{name} has no episodes of its own for validation, which therefore plays some of "
        "training: its scores do not say how the policy does on others. Name a file for it in "
        "data.task_config",
    )


def _mixture(source: "EnvironmentSource", sizes: Sizes, weights: Sequence[float]) -> Task:
    """Build a task with the episodes of several environments, in order; each has its own
    validation set.
    """
    from strop.environments.base import members_of, sizes_of
    from strop.environments.mixture import seed_of

    names = list(members_of(source.name, {}))
    if weights and len(weights) != len(names):
        raise UserError(
            f"data.weights has {len(weights)} numbers for {len(names)} environments "
            f"({', '.join(names)}): give one for each"
        )
    splits: dict[str, list[list[dict[str, Any]]]] = {}
    with source.opened() as reader:
        members = cast("Mixture", reader).members
        owns = [sizes_of(each, name) for each, name in zip(members, names, strict=True)]
        for split in sizes:
            splits[split] = []
            for n, (name, own) in enumerate(zip(names, owns, strict=True)):
                seeds = _seeds(sizes, split, name, own)
                among_all = [seed_of(n, seed, len(names)) for seed in seeds]
                splits[split].append(_first_rows(source, reader, among_all))
    ends = itertools.accumulate(map(len, splits["train"]))
    sources = zip(names, ends, weights or (1.0,) * len(names), strict=True)
    sets = enumerate(zip(names, splits["validation"], strict=True), len(sizes))
    return Task(
        name=source.name,
        rewards=(),
        max_tokens=reader.max_turns * reader.max_tokens,
        reward_range=reader.reward_range,
        environment=source,
        train=number_rows([row for rows in splits["train"] for row in rows], 0),
        validation=(),
        heldout=number_rows([row for rows in splits["heldout"] for row in rows], 2),
        origins=tuple(Origin(*each) for each in sources),
        sets={name: number_rows(rows, number) for number, (name, rows) in sets},
        notes=tuple(itertools.chain.from_iterable(map(_about_validation, names, owns))),
    )


def _seeds(
    sizes: Sizes, split: str, name: str = "", own: Mapping[str, int] | None = None
) -> Sequence[int]:
    """The seeds of the episodes of a split.

    own: how many episodes the environment `name` has in each; None: any number. Validation without
    its own plays those of training. Raises UserError for a size above their number.
    """
    from strop.environments.base import EPISODES

    begin = list(sizes).index(split) * MAX_SPLIT_ROWS
    asked, usual = sizes[split], EPISODES[split]
    if own is not None:
        usual = most = own.get(split, 0)
        if split == "validation" and not most:
            begin, most = 0, own.get("train", 0)
            usual = min(most, EPISODES[split])
        if not own.get("train"):
            raise UserError(
                f"num_episodes() of {name} names no episodes for train: add their number"
            )
        if asked is not None and asked > most:
            instead = "ask for fewer" if most else "name a file for it in data.task_config"
            raise UserError(
                f"data.{split}_size={asked}, and the size of the {split} split of {name} is "
                f"{most}: {instead}, or leave it out"
            )
    size = usual if asked is None else asked
    return range(begin, begin + size)


def _first_rows(
    source: "EnvironmentSource", reader: "Environment", seeds: Sequence[int]
) -> list[dict[str, Any]]:
    from strop.environments.episodes import Episodes

    rows = [_first_row(Episodes(source, [seed], reader), seed) for seed in seeds]
    if rows:
        again = _first_row(Episodes(source, seeds[:1], reader), seeds[0])["prompt"]
        if again != rows[0]["prompt"]:
            raise UserError(
                f"environment {source.name} does not repeat: the seed {seeds[0]} began with "
                f"{rows[0]['prompt'][:200]!r} and then with {again[:200]!r}. Equal seeds must give "
                "equal episodes: draw from random.Random(seed), made in reset"
            )
    return rows


def _first_row(episodes: "Episodes", seed: int) -> dict[str, Any]:
    """The row of an episode: its first text, its seed, and the columns of its environment.

    Raises UserError where the episode cannot begin, and where it has no columns.
    """
    from strop.environments.episodes import failed

    (shown,) = episodes.reset()
    episodes.close()
    if shown.exit is not None:
        raise UserError(shown.why)
    try:
        row = {**episodes.environments[0].columns(), "prompt": shown.text, "seed": seed}
    except Exception as error:
        where = f"the columns of the seed {seed}"
        why = failed(episodes.source.name, Exit.START_FAILED, where, error).why
        raise UserError(why) from error
    check_columns(row, f"environment {episodes.source.name}: columns()")
    return row


def check_columns(row: Mapping[str, Any], where: str) -> None:
    """Raise UserError for a column with the name of an argument that rewards receive anyway."""
    if clash := next((name for name in row if name in RESERVED), None):
        raise UserError(
            f"{where} has a column {clash!r}, a name that rewards receive otherwise: "
            "rename the column"
        )


_FAMILIES: dict[str, Callable[[str, Sizes, Mapping[str, Any]], Task]] = {
    **{name: functools.partial(_puzzles, name) for name in OWN},
    "reasoning_gym": _reasoning_gym,
    "traces": _traces,
    "agent": _agent,
    "verifiers": _verifiers,
}
