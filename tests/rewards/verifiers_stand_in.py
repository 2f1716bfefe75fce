"""A fake package of the shape of `verifiers.v1`, which is not among the packages of the tests."""

from pathlib import Path

TEXT = """
import inspect
from typing import Any, Generic, TypeVar, get_args

from pydantic import BaseModel, ConfigDict


class TaskData(BaseModel):
    model_config = ConfigDict(frozen=True)
    idx: int | None = None
    prompt: Any = None


D = TypeVar("D", bound=TaskData)


class Task(Generic[D]):
    def __init__(self, data, config=None):
        self.data, self.config = data, config

    @classmethod
    def data_type(cls):
        bases = [base for each in cls.__mro__ for base in vars(each).get("__orig_bases__", ())]
        kinds = [kind for base in bases for kind in get_args(base) if isinstance(kind, type)]
        return kinds[0] if kinds else TaskData


class Trace:
    pass


def _mark(name, function, **more):
    def decorate(f):
        for key, value in {name: True, **more}.items():
            setattr(f, key, value)
        return f
    return decorate if function is None else decorate(function)


def reward(func=None, weight=1.0, priority=0):
    return _mark("reward", func, reward_priority=priority, _vf_weight=weight)


def metric(func=None, priority=0):
    return _mark("metric", func, metric_priority=priority)
"""


def write_verifiers(folder: Path) -> None:
    """The package, in a folder that files there import from."""
    package = folder / "verifiers" / "v1"
    package.mkdir(parents=True)
    (folder / "verifiers" / "__init__.py").write_text("")
    (package / "__init__.py").write_text(TEXT)
