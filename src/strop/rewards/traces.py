"""Rewards as in verifiers since its version 1: methods of a task that read a trace.

    class Sum(vf.Task[SumData]):
        @vf.reward(weight=1.0)
        async def right(self, trace): return float(trace.last_reply == self.data.answer)

Such a class becomes a function of a trace and of the columns that are fields of its data. A method
can read the attributes of `Trace`; there is no runtime, and no harness ran. Other attributes of
verifiers' trace (times, model calls, branches) raise an error that names them, so nothing is scored
silently without them.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from strop.support.errors import UserError

Method = Callable[..., Any]


class NotThere(UserError, AttributeError):
    """An attribute of verifiers that strop lacks; `getattr` with a default gives the default."""


class Known:
    """Has some fields of a class of verifiers, and raises NotThere where another one is read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        there = [each for each in dir(type(self)) if not each.startswith("_")]
        raise NotThere(
            f"a {type(self).__name__.lower()} of verifiers has no {name} here: strop has "
            f"{', '.join(sorted({*there, *vars(self)}))}; leave the rest out of the reward"
        )


@dataclass
class Reward:
    """A recorded reward."""

    score: float
    weight: float = 1.0

    @property
    def value(self) -> float:
        """The reward's contribution to the total reward."""
        return self.score * self.weight


@dataclass
class Usage(Known):
    """Tokens of an answer."""

    completion_tokens: int


@dataclass
class Trace(Known):
    """One rollout as a conversation that has ended. Messages have `role` and `content`."""

    messages: list[SimpleNamespace]
    num_given: int  # messages of the prompt
    task: SimpleNamespace  # `data`: the row
    num_output_tokens: int = 0
    truncated: bool | None = None  # None: unknown
    info: dict[str, Any] = field(default_factory=dict)
    state: SimpleNamespace = field(default_factory=SimpleNamespace)
    metrics: dict[str, float] = field(default_factory=dict)
    rewards: dict[str, Reward] = field(default_factory=dict)
    errors: list[Any] = field(default_factory=list)
    is_completed: bool = True
    ok: bool = True
    has_error: bool = False
    is_timeout: bool = False
    last_error: None = None
    num_branches: int = 1
    stop_condition: str = "agent_completed"  # verifiers' word for an answer, cut off or not

    @classmethod
    def of(
        cls, prompt: Any, completion: Any, row: Mapping[str, Any], num_tokens: int = 0,
        truncated: bool | None = None,
    ) -> "Trace":  # fmt: skip
        """The trace of an answer to a prompt, each text or messages."""
        given, replies = _messages(prompt, "user"), _messages(completion, "assistant")
        task = SimpleNamespace(data=SimpleNamespace(**{**row, "prompt": prompt}))
        return cls([*given, *replies], len(given), task, num_tokens, truncated)

    @property
    def assistant_messages(self) -> list[SimpleNamespace]:
        """The model's messages, one a turn."""
        return [m for m in self.messages[self.num_given :] if m.role == "assistant"]

    @property
    def tool_messages(self) -> list[SimpleNamespace]:
        """The tools' answers."""
        return [m for m in self.messages if m.role == "tool"]

    @property
    def last_message(self) -> SimpleNamespace:
        """The last message."""
        return self.messages[-1]

    @property
    def last_reply(self) -> str:
        """The text of the model's last message, without blanks at its ends."""
        replies = self.assistant_messages
        return (replies[-1].content or "").strip() if replies else ""

    @property
    def num_turns(self) -> int:
        """The number of the model's messages."""
        return len(self.assistant_messages)

    @property
    def is_truncated(self) -> bool:
        """Whether its limit cut the answer off. Raises NotThere where that is unknown."""
        return self.__getattr__("is_truncated") if self.truncated is None else self.truncated

    @property
    def usage(self) -> Usage:
        """The tokens that the model wrote."""
        return Usage(self.num_output_tokens)

    @property
    def transcript(self) -> str:
        """All messages as one text, each under its role in brackets."""
        return "\n\n".join(f"[{m.role}]\n{m.content or ''}" for m in self.messages)

    @property
    def reward(self) -> float:
        """The sum of the rewards so far, each times its weight."""
        return sum(each.value for each in self.rewards.values())

    def record_metric(self, name: str, value: float) -> None:
        """Record a number beside the rewards."""
        self.metrics[name] = float(value)

    def record_metrics(self, values: Mapping[str, float]) -> None:
        """Record several numbers beside the rewards."""
        for name, value in values.items():
            self.record_metric(name, value)

    def record_reward(self, name: str, value: float, weight: float = 1.0) -> None:
        """Record a reward; it replaces an earlier one of the same name."""
        self.rewards[name] = Reward(float(value), float(weight))


class TaskRewards:
    """The weighted sum of a task's rewards, called as `function(trace, field=value, ...)`."""

    def __init__(self, kind: type, source: str) -> None:
        self.kind, self.__name__ = kind, kind.__name__
        self.rewards = marked(kind, "reward") or (["reward"] if hasattr(kind, "reward") else [])
        self.metrics = marked(kind, "metric")
        if not self.rewards:
            raise UserError(
                f"reward {source} is a class without a reward: mark methods with @vf.reward as in "
                f"verifiers, or call the class: {kind.__name__}(...)"
            )
        for name in (*self.rewards, *self.metrics):
            for parameter in list(inspect.signature(getattr(kind, name)).parameters.values())[1:]:
                if parameter.name not in ("task", "trace") and parameter.default is parameter.empty:
                    raise UserError(
                        f"reward {source}: {name} needs {parameter.name!r}, and strop has the "
                        "task's data and the trace alone: leave the method out"
                    )
        self.data: Any = kind.data_type() if hasattr(kind, "data_type") else None  # a model's class
        self.__signature__ = inspect.Signature(self._parameters())

    def _parameters(self) -> list[inspect.Parameter]:
        trace = inspect.Parameter("trace", inspect.Parameter.KEYWORD_ONLY)
        fields = {} if self.data is None else dict(self.data.model_fields)
        fields.pop("prompt", None)
        return [trace, *(
            trace.replace(name=name, default=trace.empty if each.is_required() else None)
            for name, each in fields.items()
        )]  # fmt: skip

    async def __call__(self, trace: Trace, **fields: Any) -> dict[str, Any]:
        """The `score`, and every reward and metric by name."""
        data = trace.task.data
        if self.data is not None:  # None: the row lacks the column, which others have
            known = self.data.model_fields
            given = {n: v for n, v in fields.items() if v is not None or known[n].is_required()}
            data = self.data(**{**given, "prompt": data.prompt})
        task = self.kind(data)
        trace.task = SimpleNamespace(data=data, type=self.kind.__name__)
        # As in verifiers: metrics come first, since rewards may read them; each kind is recorded
        # only after all of it has run.
        for values in [await _named(getattr(task, n), data, trace) for n in self.metrics]:
            trace.record_metrics(values)
        methods = [getattr(task, name) for name in self.rewards]
        found = [await _named(method, data, trace) for method in methods]
        for method, values in zip(methods, found, strict=True):
            for name, value in values.items():
                trace.record_reward(name, value, getattr(method, "_vf_weight", 1.0))
        scores = {name: each.score for name, each in trace.rewards.items()}
        return {**trace.metrics, **scores, "score": trace.reward}


def marked(kind: type, mark: str) -> list[str]:
    """Methods that a decorator of verifiers has marked, by falling priority."""
    names = [n for n in dir(kind) if inspect.isfunction(f := getattr(kind, n)) and hasattr(f, mark)]
    return sorted(names, key=lambda n: (-getattr(getattr(kind, n), f"{mark}_priority", 0), n))


async def _named(method: Method, data: Any, trace: Trace) -> Mapping[str, float]:
    """Call a method; returns its numbers by name, a single one under the method's own name."""
    available = {"task": data, "trace": trace}
    wanted = inspect.signature(method).parameters
    found = method(**{name: value for name, value in available.items() if name in wanted})
    found = await found if inspect.isawaitable(found) else found
    return found if isinstance(found, Mapping) else {method.__name__: found}


def _messages(content: Any, role: str) -> list[SimpleNamespace]:
    given: Sequence[Mapping[str, Any]] = content
    if isinstance(content, str):
        given = [{"role": role, "content": content}]
    return [SimpleNamespace(**{"content": None, **message}) for message in given]
