"""Environments: their base class, their names, and how many episodes of one are played.

An episode is a conversation: the environment shows a text, the policy acts in text, the environment
answers with the next text and the action's reward, until the episode ends.
"""

import inspect
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar

from strop.data.tool_calls import Call, tagged_calls
from strop.environments.tools import Tool, ToolAnswer, tools_of
from strop.support.errors import UserError, did_you_mean, in_words
from strop.support.exits import Exit
from strop.support.loading import PICKLED, attribute, camel, name_to_load

FOLDER = Path(__file__).parent / "built_in"
# Families of environments of other packages, each a file of `adapters`, and how to name a member.
FAMILIES = {"gym": "gym:NAME", "openenv": "openenv:URL", "textarena": "textarena:NAME"}
NAMED = re.compile(r"([\w.-]+)=(.+)")  # a member of a mixture: easy=corridor
JOINED = " + "  # between the environments of a mixture
STYLES = ("plain", "compact")
# my_env.py:MyEnv, package.module:MyEnv; the third is a class defined in a script or notebook.
OWN = re.compile(r".+(\.py:|\.\w+:)\w+|__main__:\w+")
NOT_PLAYED = (
    "traces",
    "agent",
    "verifiers",
)  # families of tasks that are given as files and are not environments
MODULES = re.compile(r"\w+:\w+")  # module:MyEnv, which may also be a task of another kind
EPISODES = {"train": 1000, "validation": 100, "heldout": 100}  # a task's default numbers
OF_OTHERS = "strop.environments.adapters"
SHOWN = 80  # characters of an action in an error


@dataclass(frozen=True)
class Observation:
    """What an environment shows after a reset or an action, and what that action earned.

    `reward`, `rewards`, `valid`, `match` and `measures` describe the previous action; `text`,
    `state` and `role` the next turn. Only the player `role` sees the text.
    """

    text: str
    reward: float = 0.0
    done: bool = False  # the episode has ended by its own rules
    truncated: bool = False  # a limit of the environment cuts the episode
    state: str = ""  # equal texts are equal states; empty: the whole history is the state
    valid: bool = True  # the action was understood
    role: int = 0  # the player who acts next
    match: bool = True  # the action was the desired one, where an environment knows one
    rewards: tuple[float, ...] = ()  # each player's, where `reward` is not the actor's alone
    measures: Mapping[str, float] = field(default_factory=dict)  # further numbers of the action
    exit: Exit | None = None  # why it has ended, where neither of the two is the reason
    why: str = ""  # what failed, where the exit is a failure
    # The tools' answers to the action: in a chat each is a message of the role `tool`, in place of
    # `text`.
    answers: tuple[ToolAnswer, ...] = ()


class Environment:
    """Base of all environments: one object plays one episode after another.

    The constructor takes the options of `data.task_config` and may set the numbers below. Equal
    seeds and actions must give equal episodes. An exception ends its episode, which is not scored.

    With several `roles`, one for each player, an observation's `role` is the player who acts next,
    and only that player sees its text. Without them there is one player, and `role` is only a
    label.
    """

    rewrites: bool = False  # an observation is the whole context of its turn
    roles: tuple[int, ...] = ()  # role of each player; players of one role have the same task
    max_turns: int = 8  # most actions of each player in an episode
    max_tokens: int = 64  # most tokens of an action
    reward_range: tuple[float, float] | None = None  # of an episode's sum; None: unknown
    stop_strings: ClassVar[tuple[str, ...]] = ()  # texts that end an action, as data.stop_strings

    def reset(self, seed: int) -> Observation:
        """Begin the episode of a seed; the observation's text is the prompt.

        Where `step` is an `async def` this may be one too: a step's episodes then begin together.
        """
        raise UserError(_lacks(type(self).__name__, "reset(seed)"))

    def step(self, action: str) -> Observation:
        """Take an action, as the policy wrote it, and return the observation that follows.

        It may be an `async def`: then a slow step does not delay the other episodes.
        """
        raise UserError(_lacks(type(self).__name__, "step(action)"))

    def close(self) -> None:
        """Free the environment's resources; called once, after its last episode."""
        return

    def columns(self) -> Mapping[str, Any]:
        """Columns of the prompt of the last reset, such as `answer`; only training reads them."""
        return {}

    def num_episodes(self) -> Mapping[str, int] | None:
        """How many episodes `train`, `validation` and `heldout` have where they are rows of a file,
        which the seeds of a split count; None: as many as are requested.

        Without a number for validation, that is training's episodes; without one for `heldout`,
        nothing is held out.
        """
        return None

    def tools(self) -> Sequence[Any]:
        """The tools that all of its episodes offer: Python functions with type hints and a
        docstring, or `Tool`s. The policy sees them, and its calls arrive parsed, as an `Action`.
        """
        return ()

    def calls(self, action: str) -> list[Call]:
        """The tool calls that an action makes, independent of earlier actions."""
        return tagged_calls(action)

    @classmethod
    def played_as(cls, options: Mapping[str, Any]) -> "type[Environment]":
        """The class that plays with these options; override this where the options decide whether
        `step` is awaited.
        """
        return cls

    @classmethod
    def step_all(
        cls, environments: Sequence["Environment"], actions: Sequence[str]
    ) -> list[Observation]:
        """Step many episodes; override this where one call for all is faster."""
        return [each.step(action) for each, action in zip(environments, actions, strict=True)]


@dataclass(frozen=True)
class EnvironmentSource:
    """An environment by name, with the options of its constructor.

    Raises UserError for an unknown name, a class of another kind, or options that it refuses.
    """

    # "corridor", "file.py:Class", "package.module:Class", "gym:NAME", or several joined by " + "
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def styled(self, style: str) -> Mapping[str, Any]:
        """The options with a style, where the environment comes with strop, has styles, and the
        options do not choose one.
        """
        if JOINED in self.name:
            own = members_of(self.name, self.options).items()
            found = {label: dict(each.styled(style)) for label, each in own}
            return {k: options for k, options in found.items() if options or k in self.options}
        comes_with_strop = self.name in built_in() or family_of(self.name)
        has_styles = comes_with_strop and "style" in _options_of(_class_of(self.name, self.options))
        if not has_styles or "style" in self.options:
            return self.options
        return {**self.options, "style": style}

    def make(self) -> Environment:
        """Make a new environment."""
        kind = self._kind
        member = self.name.partition(":")[2] if family_of(self.name) else ""
        given = (self.name if JOINED in self.name else member,)
        try:
            made = kind(*filter(None, given), **self.options)
        except UserError:
            raise
        except Exception as error:
            known = _options_of(kind)
            raise UserError(
                f"environment {self.name} refuses data.task_config {dict(self.options)}: {error}; "
                f"it has {', '.join(known) or 'no options'}"
            ) from error
        for limit in ("max_turns", "max_tokens"):
            value = getattr(made, limit)
            if not isinstance(value, int) or value < 1:
                raise UserError(
                    f"environment {self.name}: {limit} is {value!r}; make it an int from 1"
                )
        if any(not isinstance(role, int) or role < 0 for role in made.roles):
            raise UserError(
                f"environment {self.name}: roles is {made.roles!r}; make it one whole number from "
                "0 for each player"
            )
        return made

    @property
    def _kind(self) -> Any:
        """The class that plays."""
        return _class_of(self.name, self.options).played_as(self.options)

    @property
    def is_asynchronous(self) -> bool:
        """Whether a step is awaited."""
        return inspect.iscoroutinefunction(self._kind.step)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts that end an action; of a mixture, those of all its environments."""
        if JOINED in self.name:
            members = members_of(self.name, self.options).values()
            return tuple(dict.fromkeys(chain.from_iterable(each.stop_strings for each in members)))
        return self._kind.stop_strings

    @property
    def steps_all(self) -> bool:
        """Whether one call can step many episodes."""
        return steps_all(_class_of(self.name, self.options))

    def tools(self) -> tuple[Tool, ...]:
        """The tools that its episodes offer. Raises UserError where they have no schema."""
        if _class_of(self.name, self.options).tools is Environment.tools:
            return ()
        with self.opened() as made:
            return tools_of(made.tools())

    @property
    def holds_out(self) -> bool:
        """Whether it has episodes that are held out from training."""
        if JOINED in self.name:
            return any(each.holds_out for each in members_of(self.name, self.options).values())
        if self._kind.num_episodes is Environment.num_episodes:
            return True
        with self.opened() as made:
            own = sizes_of(made, self.name)
        return own is None or own.get("heldout", 0) > 0

    @contextmanager
    def opened(self) -> Iterator[Environment]:
        """Make a new environment and close it when the context exits."""
        made = self.make()
        try:
            yield made
        finally:
            close(made, self.name)


def sizes_of(made: Environment, name: str) -> Mapping[str, int] | None:
    """The numbers of episodes of its splits; None: any number. Raises UserError."""
    own: Any = made.num_episodes()
    counts = own.values() if isinstance(own, Mapping) else ("none",)
    if own is not None and not all(isinstance(count, Integral) for count in counts):
        raise UserError(
            f"num_episodes() of {name} gives {own!r}: give a number for each split, such as "
            "{'train': 500, 'validation': 50}"
        )
    return own


def close(made: Environment, name: str, where: str = "close") -> None:
    """Close an environment; a failure is a warning, since what it gave before stands."""
    try:
        made.close()
    except (Exception, SystemExit) as error:
        warnings.warn(f"environment {name} failed at {where}: {in_words(error)}", stacklevel=3)


def source_of(task: str, options: Mapping[str, Any] | None = None) -> EnvironmentSource | None:
    """The environment that a task's name stands for, or None for a task of another kind.

    Names are `corridor`, `my_env.py:MyEnv`, `package.module:MyEnv`, `gym:NAME`, each also after
    `environment:`, where `module:MyEnv` is one too; several are joined by " + ". Raises UserError
    for an unknown name after `environment:`, and for a family without a name.
    """
    if JOINED in task:
        members_of(task, options or {})
        return EnvironmentSource(task, dict(options or {}))
    family, _, member = task.partition(":")
    if family in NOT_PLAYED:
        return None
    explicit = family == "environment"
    name = member if explicit else task
    if (bare := name.removesuffix(":")) in FAMILIES:
        raise UserError(f"data.task={task} names none of its environments: give {FAMILIES[bare]}")
    if (
        name in built_in()
        or family_of(name)
        or OWN.fullmatch(name)
        or (explicit and MODULES.fullmatch(name))
    ):
        return EnvironmentSource(name, dict(options or {}))
    if explicit:
        raise UserError(
            f"no environment {name!r}{did_you_mean(name, built_in())}; there are "
            f"{', '.join((*built_in(), *FAMILIES.values()))}, and your own as file.py:Class"
        )
    return None


def members_of(name: str, options: Mapping[str, Any]) -> dict[str, EnvironmentSource]:
    """The environments of a mixture, by their names in it; imports none. Raises UserError."""
    found = dict[str, EnvironmentSource]()
    for written in name.split(JOINED):
        given = NAMED.fullmatch(written.strip())
        label, task = given.groups() if given else ("", written.strip())
        label = label or re.sub(r"\W+", "_", task).strip("_")
        if label in found:
            raise UserError(f"{name} has two of the name {label}: name them, easy={task}")
        own = options.get(label, {})
        if not isinstance(own, Mapping):
            raise UserError(
                f"data.task_config of {name} has {own!r} for {label}: give each environment its "
                f"options, {{{label!r}: {{...}}}}"
            )
        source = source_of(task, own)
        if source is None:
            hint = did_you_mean(task, built_in())
            raise UserError(f"{task} is no environment{hint}, and only environments mix: {name}")
        found[label] = source
    for label in options:
        if label not in found:
            hint = did_you_mean(label, list(found))
            raise UserError(
                f"data.task_config of {name} has options for {label}{hint}; its environments are "
                f"{', '.join(found)}"
            )
    return found


@cache
def built_in() -> tuple[str, ...]:
    """Names of the environments that come with strop."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.py") if not p.stem.startswith("_")))


def family_of(name: str) -> str:
    """The family of `gym:NAME`; empty for any other name."""
    family, _, member = name.partition(":")
    return family if member and family in FAMILIES else ""


def task_of_class(kind: type) -> str:
    """The name of the task that is played in an environment of this class.

    Raises UserError for a class that cannot be loaded again by a name.
    """
    if "." in kind.__qualname__:
        raise UserError(
            f"{kind.__qualname__} is defined inside something else: define the environment at the "
            "top of the script or notebook, or write it into a file and give FILE.py:CLASS"
        )
    if kind.__module__.startswith(f"{__package__}.built_in."):
        return name_to_load(kind)
    is_own = kind.__module__.startswith("strop.")
    name = f"{kind.__module__}:{kind.__qualname__}" if is_own else name_to_load(kind)
    return name if OWN.fullmatch(name) else f"environment:{name}"


def _options_of(kind: Any) -> list[str]:
    """Names of the options of an environment's constructor."""
    known = list(inspect.signature(kind).parameters.values())
    first = 1 if issubclass(kind, Environment) and kind.__module__.startswith(OF_OTHERS) else 0
    return [each.name for each in known[first:]]


def _class_of(name: str, options: Mapping[str, Any]) -> Any:
    if JOINED in name:
        awaited = any(each.is_asynchronous for each in members_of(name, options).values())
        return _load(name, f"strop.environments.mixture:{'Awaited' * awaited}Mixture")
    if family := family_of(name):
        return _load(name, f"{OF_OTHERS}.{family}:{camel(family)}")
    place, _, attribute = name.rpartition(":")
    if not place:
        return _load(name, f"strop.environments.built_in.{name}:{camel(name)}")
    if place.endswith(".py"):  # the same name in another folder is another class
        return _load(name, f"{Path(place).resolve()}:{attribute}")
    if place == "__main__" or place.endswith(PICKLED):  # a notebook may define its class again
        return _checked(name, name)
    return _load(name, name)


@cache
def _load(name: str, where: str) -> Any:
    """Load the class, once for this process, even if its file changes later."""
    return _checked(name, where)


def _checked(name: str, where: str) -> Any:
    kind = attribute(where)
    if not (isinstance(kind, type) and issubclass(kind, Environment)):
        raise UserError(
            f"{name} is no environment: derive the class from "
            "strop.environments.base.Environment and give it reset(seed) and step(action)"
        )
    if kind.reset is Environment.reset:
        raise UserError(_lacks(name, "reset(seed)"))
    if kind.step is Environment.step and not steps_all(kind):
        raise UserError(_lacks(name, "step(action)"))
    if inspect.iscoroutinefunction(kind.close):
        raise UserError(f"environment {name}: close is an async def, which nothing awaits: make it "
                        "a plain def")  # fmt: skip
    return kind


def steps_all(kind: type[Environment]) -> bool:
    """Whether the class overrides `step_all`."""
    found: Any = kind.step_all
    return found.__func__ is not vars(Environment)["step_all"].__func__


def _lacks(name: str, method: str) -> str:
    return f"environment {name} has no method {method}, which gives an Observation: add it"


def only_word(action: str, words: re.Pattern[str]) -> str:
    """The word in an action, of those that the pattern finds; empty for none, or for several."""
    found = set(words.findall(action.lower()))
    return found.pop() if len(found) == 1 else ""


def check_style(style: str) -> None:
    """Raise UserError unless it is the name of a style of the built-in environments."""
    if style not in STYLES:
        raise UserError(f"style {style!r} is none of {', '.join(STYLES)}")


def check_number(
    name: str, value: Any, low: float, high: float = math.inf, whole: bool = True
) -> None:
    """Raise UserError unless an option is a number (a whole one) in [low, high]."""
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not right or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        bounds = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
        raise UserError(f"{name} must be {kind} {bounds}, it is {value!r}")
