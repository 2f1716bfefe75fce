"""Environments: tasks that answer. What one is, how it is named, how many episodes are played.

An episode is a conversation: the environment shows a text, the policy acts in text, the environment
answers with the next text and the action's reward, until it is over.
"""

import asyncio
import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from strop.environments.tool_calls import Call, tagged_calls
from strop.support.errors import RunStopped, UserError, did_you_mean
from strop.support.loading import attribute, camel

FOLDER = Path(__file__).parent / "built_in"
STYLES = ("plain", "compact")
OWN = re.compile(r".+(\.py:|\.\w+:)\w+")  # my_env.py:MyEnv, package.module:MyEnv
EPISODES = {"train": 1000, "validation": 100, "heldout": 100}  # of a task, by default
SHOWN = 80  # characters of an action in an error


@dataclass(frozen=True)
class Observation:
    """What an environment says after a reset or an action, and what that action was worth.

    `reward`, `rewards`, `valid`, `match` and `measures` are of the action before; `text`, `state`
    and `role` of the turn to come. The text is for the player `role` alone.
    """

    text: str
    reward: float = 0.0
    done: bool = False  # the episode is over by its own rules
    truncated: bool = False  # it is cut by a limit of the environment
    state: str = ""  # equal texts are equal states; empty: the whole history is the state
    valid: bool = True  # the action was understood
    role: int = 0  # player whose turn comes
    match: bool = True  # the action was the one that was wanted, where an environment knows one
    rewards: tuple[float, ...] = ()  # each player's, where `reward` is not the actor's alone
    measures: Mapping[str, float] = field(default_factory=dict)  # further numbers of the action


class Environment:
    """Base of all environments: one object plays one episode after another.

    The constructor takes the options of `data.task_config` and may set the numbers below. Equal
    seeds and actions must give equal episodes. What raises stops the run, with seed and action.

    With several `roles`, one for each player, an observation's `role` is the player who acts next,
    and only that player sees its text. Without, there is one player, and `role` is a mere label.
    """

    rewrites: bool = False  # an observation is the whole context of its turn
    roles: tuple[int, ...] = ()  # role of each player: those of one role have one task
    max_turns: int = 8  # actions of an episode, of each player
    max_tokens: int = 64  # tokens of an action
    reward_range: tuple[float, float] | None = None  # of an episode's sum; None: not known

    def reset(self, seed: int) -> Observation:
        """Begin the episode of a seed; its text is the prompt."""
        raise UserError(_lacks(type(self).__name__, "reset(seed)"))

    def step(self, action: str) -> Observation:
        """What comes of an action, given as the policy wrote it.

        It may be an `async def`: then a slow one holds up nobody, and other episodes go on.
        """
        raise UserError(_lacks(type(self).__name__, "step(action)"))

    def close(self) -> None:
        """Let go of what it holds; called once, when its last episode is over."""
        return

    def columns(self) -> Mapping[str, Any]:
        """Columns of the prompt that the last reset began, such as `answer`; for training alone."""
        return {}

    def calls(self, action: str) -> list[Call]:
        """The tool calls that an action makes, whatever came before it."""
        return tagged_calls(action)

    @classmethod
    def step_all(
        cls, environments: Sequence["Environment"], actions: Sequence[str]
    ) -> list[Observation]:
        """One step of many episodes; override it where they are faster together."""
        return [each.step(action) for each, action in zip(environments, actions, strict=True)]


@dataclass(frozen=True)
class EnvironmentSource:
    """An environment by name and the options of its constructor.

    Raises UserError for a name that is none, a class of another kind, or options that it refuses.
    """

    name: str  # "corridor", "file.py:Class" or "package.module:Class"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_styles(self) -> bool:
        """Whether it comes with strop and speaks plainly or compactly, as its `style` says."""
        return (
            ":" not in self.name and "style" in inspect.signature(_class_of(self.name)).parameters
        )

    def make(self) -> Environment:
        """A fresh environment."""
        kind = _class_of(self.name)
        try:
            made = kind(**self.options)
        except UserError:
            raise
        except Exception as error:
            known = [n for n in inspect.signature(kind).parameters if n != "self"]
            raise UserError(
                f"environment {self.name} refuses data.task_config {dict(self.options)}: {error}; "
                f"it has {', '.join(known) or 'no options'}"
            ) from error
        for limit in ("max_turns", "max_tokens"):
            value = getattr(made, limit)
            if not isinstance(value, int) or value < 1:
                raise UserError(f"environment {self.name}: {limit} is {value!r}; make it 1 or more")
        if any(not isinstance(role, int) or role < 0 for role in made.roles):
            raise UserError(
                f"environment {self.name}: roles is {made.roles!r}; make it one whole number from "
                "0 for each player"
            )
        return made

    @contextmanager
    def opened(self) -> Iterator[Environment]:
        """A fresh environment, which is closed at the end."""
        made = self.make()
        try:
            yield made
        finally:
            made.close()


class Episodes:
    """Many episodes of one environment at once; each has a number, its place among the seeds.

    An environment is closed when its episode is over; `close` closes the others. `played`: one that
    is there already, for a single episode, and stays open.

    Raises RunStopped where the environment raises or answers with something else than an
    Observation: the run stops rather than leave the episode out, for a game that fails in the
    middle would silently choose which episodes are learnt from.
    """

    def __init__(
        self, source: EnvironmentSource, seeds: Sequence[int], played: Environment | None = None
    ) -> None:
        self.source = source
        self.seeds = tuple(seeds)
        self.environments = [played] if played else list[Environment]()
        # Whether an observation is the whole context of its turn.
        self.rewrites = any(each.rewrites for each in self.environments)
        self._open: set[int] = set()
        if played is None:
            for number in range(len(self.seeds)):
                self._make(number)

    def _make(self, number: int) -> None:
        try:
            self.environments.append(self.source.make())
        except BaseException:
            self.close()
            raise
        self.rewrites = self.rewrites or self.environments[-1].rewrites
        self._open.add(number)

    @property
    def max_turns(self) -> int:
        """Most actions of an episode."""
        return max((each.max_turns for each in self.environments), default=1)

    @property
    def max_tokens(self) -> int:
        """Most tokens of an action."""
        return max((each.max_tokens for each in self.environments), default=1)

    @property
    def roles(self) -> tuple[int, ...]:
        """The role of each player; empty where there is one player."""
        roles = self.environments[0].roles if self.environments else ()
        return roles if len(roles) > 1 else ()

    def reset(self) -> list[Observation]:
        """Begin all episodes."""
        return [self._reset(number) for number in range(len(self.environments))]

    @property
    def awaited(self) -> bool:
        """Whether a step is awaited, as `step_alone`, while other episodes go on."""
        return any(inspect.iscoroutinefunction(type(each).step) for each in self.environments)

    async def step_alone(self, number: int, action: str) -> Observation:
        """One step of an episode whose environment is asynchronous."""
        try:
            answer = await self.environments[number].step(action)  # type: ignore[misc]
        except Exception as error:
            raise self._stopped([number], [action], error) from error
        checked = self._checked(answer, number, action)
        if checked.done or checked.truncated:
            self._close([number])
        return checked

    async def _step_together(
        self, numbers: Sequence[int], actions: Sequence[str]
    ) -> list[Observation]:
        return await asyncio.gather(*map(self.step_alone, numbers, actions))

    def step(self, numbers: Sequence[int], actions: Sequence[str]) -> list[Observation]:
        """One step of the episodes `numbers`, in their order."""
        if self.awaited:
            return self._step_in_a_loop(numbers, actions)
        chosen = [self.environments[number] for number in numbers]
        if not chosen:
            return []
        kind = type(chosen[0])
        if not _steps_all(kind):
            answers = [self._step(n, each, a) for n, each, a in zip(numbers, chosen, actions,
                                                                    strict=True)]  # fmt: skip
        else:
            try:
                answers = list(kind.step_all(chosen, actions))
            except Exception as error:
                raise self._stopped(numbers, actions, error) from error
            if len(answers) != len(chosen):
                wrong = ValueError(f"step_all gave {len(answers)} answers to {len(chosen)} actions")
                raise self._stopped(numbers, actions, wrong)
        checked = [
            self._checked(o, n, a) for o, n, a in zip(answers, numbers, actions, strict=True)
        ]
        over = [n for n, o in zip(numbers, checked, strict=True) if o.done or o.truncated]
        self._close(over)
        return checked

    def _step_in_a_loop(self, numbers: Sequence[int], actions: Sequence[str]) -> list[Observation]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._step_together(numbers, actions))
        raise UserError(
            f"environment {self.source.name} has an asynchronous step, and this method goes on "
            "from the middle of an episode, which repeats its actions at once: write `def step`"
        )

    def repeat(self, number: int, actions: Sequence[str], seen: Sequence[str]) -> int:
        """A further episode of the seed of `number` that has come through these actions; its
        number. `seen`: what the first one showed, before the actions and after each.

        Raises RunStopped where it shows something else.
        """
        return self.begin(self.seeds[number], actions, seen)[0]

    def begin(
        self, seed: int, actions: Sequence[str] = (), seen: Sequence[str] = ()
    ) -> tuple[int, Observation]:
        """A further episode of a seed that has come through these actions: its number, and what it
        shows then. Raises RunStopped where that is not what was `seen`.
        """
        again = len(self.environments)
        self.seeds = (*self.seeds, seed)
        self._make(again)
        shown = self._reset(again)
        for place, text in enumerate(seen):
            if place:
                (shown,) = self.step([again], [actions[place - 1]])
            if shown.text != text or shown.done or shown.truncated:
                after = f"the first {place} actions" if place else "its reset"
                raise RunStopped(
                    f"environment {self.source.name} does not repeat: in the episode of the seed "
                    f"{seed} it showed {text[:SHOWN]!r} after {after}, and then "
                    f"{shown.text[:SHOWN]!r}. Equal seeds and actions must give equal episodes"
                )
        return again, shown

    def close(self) -> None:
        """Close the environments of the episodes that are not over."""
        self._close(sorted(self._open))

    def _close(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number in self._open:
                self._open.remove(number)
                try:
                    self.environments[number].close()
                except Exception as error:
                    raise self._stopped([number], None, error, "close after") from error

    def _reset(self, number: int) -> Observation:
        try:
            answer = self.environments[number].reset(self.seeds[number])
        except Exception as error:
            raise self._stopped([number], None, error) from error
        return self._checked(answer, number, None)

    def _step(self, number: int, environment: Environment, action: str) -> Any:
        try:
            return environment.step(action)
        except Exception as error:
            raise self._stopped([number], [action], error) from error

    def _checked(self, answer: Any, number: int, action: str | None) -> Observation:
        problem = ""
        if not isinstance(answer, Observation):
            problem = f"gave {type(answer).__name__} instead of an Observation"
        elif not isinstance(answer.text, str):
            problem = f"gave {answer.text!r} as text"
        elif not all(math.isfinite(reward) for reward in (answer.reward, *answer.rewards)):
            problem = f"gave the reward {answer.rewards or answer.reward}"
        elif not all(math.isfinite(number) for number in answer.measures.values()):
            problem = f"gave the measures {dict(answer.measures)}"
        elif answer.rewards and len(answer.rewards) != max(len(self.roles), 1):
            problem = f"gave {len(answer.rewards)} rewards to {max(len(self.roles), 1)} players"
        elif self.roles and not 0 <= answer.role < len(self.roles):
            problem = f"gave the turn to player {answer.role} of {len(self.roles)}"
        elif action is None and (answer.done or answer.truncated or not answer.text):
            problem = "began with an episode that is over, or without a text"
        if problem:
            actions = None if action is None else [action]
            raise self._stopped([number], actions, TypeError(problem))
        return answer

    def _stopped(
        self, numbers: Sequence[int], actions: Sequence[str] | None, error: Exception,
        called: str = "reset with",
    ) -> RunStopped:  # fmt: skip
        seeds = [self.seeds[number] for number in numbers]
        if actions is None:
            where = f"{called} the seed {seeds[0]}"
        elif len(seeds) == 1:
            text = actions[0]
            shown = text if len(text) <= SHOWN else text[:SHOWN] + "..."
            where = f"the action {shown!r} in the episode of the seed {seeds[0]}"
        else:
            shown_seeds = ", ".join(map(str, seeds[:8])) + (", ..." if len(seeds) > 8 else "")
            where = f"step_all over {len(seeds)} episodes (seeds {shown_seeds})"
        return RunStopped(
            f"environment {self.source.name} failed at {where}: {type(error).__name__}: {error}. "
            "Correct it; an action that it cannot read should be answered with valid=False"
        )


def source_of(task: str, options: Mapping[str, Any] | None = None) -> EnvironmentSource | None:
    """The environment that a task's name means, or None for a task of another kind.

    `corridor`, `my_env.py:MyEnv`, `package.module:MyEnv`, each also after `environment:`. Raises
    UserError for a name after `environment:` that is none.
    """
    family, _, member = task.partition(":")
    explicit = family == "environment"
    name = member if explicit else task
    if name in built_in() or OWN.fullmatch(name):
        return EnvironmentSource(name, dict(options or {}))
    if explicit:
        raise UserError(
            f"no environment {name!r}{did_you_mean(name, built_in())}; there are "
            f"{', '.join(built_in())}, and your own as file.py:Class"
        )
    return None


@cache
def built_in() -> tuple[str, ...]:
    """Names of the environments that come with strop."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.py") if not p.stem.startswith("_")))


def _class_of(name: str) -> Any:
    place, _, attribute = name.rpartition(":")
    if not place:
        return _load(name, f"strop.environments.built_in.{name}:{camel(name)}")
    if place.endswith(".py"):  # the same name in another folder is another class
        return _load(name, f"{Path(place).resolve()}:{attribute}")
    return _load(name, name)


@cache
def _load(name: str, where: str) -> Any:
    kind = attribute(where)
    if not (isinstance(kind, type) and issubclass(kind, Environment)):
        raise UserError(
            f"{name} is no environment: derive the class from "
            "strop.environments.base.Environment and give it reset(seed) and step(action)"
        )
    if kind.reset is Environment.reset:
        raise UserError(_lacks(name, "reset(seed)"))
    if kind.step is Environment.step and not _steps_all(kind):
        raise UserError(_lacks(name, "step(action)"))
    return kind


def _steps_all(kind: type[Environment]) -> bool:
    """Whether the class has a `step_all` of its own."""
    found: Any = kind.step_all
    return found.__func__ is not vars(Environment)["step_all"].__func__


def _lacks(name: str, method: str) -> str:
    return f"environment {name} has no method {method}, which gives an Observation: add it"


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
