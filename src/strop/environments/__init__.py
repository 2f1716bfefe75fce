"""Environments: tasks that answer. `from strop.environments import Environment, Observation`."""

from strop.environments.base import Environment, Observation
from strop.environments.tool_calls import Call
from strop.support.exits import Exit

__all__ = ["Call", "Environment", "Exit", "Observation"]
