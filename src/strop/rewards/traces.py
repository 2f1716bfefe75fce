"""Rewards as verifiers writes them since its first version: methods of a task that read a trace.

    class Sum(vf.Task[SumData]):
        @vf.reward(weight=1.0)
        async def right(self, trace): return float(trace.last_reply == self.data.answer)

Such a class becomes a function of a trace and of the columns that its data have as fields. What a
method reads of the trace here is what `Trace` has; there is no runtime, and no harness ran.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from strop.support.errors import UserError

Method = Callable[..., Any]


@dataclass
class Trace:
    """One rollout as a conversation. Messages have `role` and `content`."""

    messages: list[SimpleNamespace]
    num_given: int  # messages of the prompt
    task: SimpleNamespace  # `data`: the row
    info: dict[str, Any] = field(default_factory=dict)
    state: SimpleNamespace = field(default_factory=SimpleNamespace)
    metrics: dict[str, float] = field(default_factory=dict)
    rewards: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, prompt: Any, completion: Any, row: Mapping[str, Any]) -> "Trace":
        """The trace of an answer to a prompt, each text or messages."""
        given, said = _messages(prompt, "user"), _messages(completion, "assistant")
        data = SimpleNamespace(**{**row, "prompt": prompt})
        return cls([*given, *said], len(given), SimpleNamespace(data=data))

    @property
    def assistant_messages(self) -> list[SimpleNamespace]:
        """What the model said, a message a turn."""
        return [m for m in self.messages[self.num_given :] if m.role == "assistant"]

    @property
    def tool_messages(self) -> list[SimpleNamespace]:
        """What tools answered."""
        return [m for m in self.messages if m.role == "tool"]

    @property
    def last_message(self) -> SimpleNamespace:
        """The message at the end."""
        return self.messages[-1]

    @property
    def last_reply(self) -> str:
        """The text of the model's last message, without blanks at its ends."""
        said = self.assistant_messages
        return (said[-1].content or "").strip() if said else ""

    @property
    def num_turns(self) -> int:
        """Messages of the model."""
        return len(self.assistant_messages)

    @property
    def transcript(self) -> str:
        """All messages as one text, each under its role in brackets."""
        return "\n\n".join(f"[{m.role}]\n{m.content or ''}" for m in self.messages)

    def record_metric(self, name: str, value: float) -> None:
        """Note a number beside the rewards."""
        self.metrics[name] = float(value)


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
        if self.data is not None:
            data = self.data(**{**fields, "prompt": data.prompt})
        task = self.kind(data)
        trace.task = SimpleNamespace(data=data, type=self.kind.__name__)
        score = 0.0
        for name in self.rewards:
            method = getattr(task, name)
            found = await _called(method, data, trace)
            values = found if isinstance(found, Mapping) else {name: found}
            weight = getattr(method, "_vf_weight", 1.0)
            trace.rewards.update(values)
            score += weight * sum(values.values())
        for name in self.metrics:
            found = await _called(getattr(task, name), data, trace)
            trace.metrics.update(found if isinstance(found, Mapping) else {name: found})
        return {**trace.metrics, **trace.rewards, "score": score}


def marked(kind: type, mark: str) -> list[str]:
    """Methods that a decorator of verifiers has marked, those of the highest priority first."""
    names = [n for n in dir(kind) if inspect.isfunction(f := getattr(kind, n)) and hasattr(f, mark)]
    return sorted(names, key=lambda n: (-getattr(getattr(kind, n), f"{mark}_priority", 0), n))


async def _called(method: Method, data: Any, trace: Trace) -> Any:
    available = {"task": data, "trace": trace}
    wanted = inspect.signature(method).parameters
    found = method(**{name: value for name, value in available.items() if name in wanted})
    return await found if inspect.isawaitable(found) else found


def _messages(said: Any, role: str) -> list[SimpleNamespace]:
    given: Sequence[Mapping[str, Any]] = said
    if isinstance(said, str):
        given = [{"role": role, "content": said}]
    return [SimpleNamespace(**{"content": None, **message}) for message in given]
