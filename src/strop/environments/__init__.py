"""Environments: tasks that answer. `from strop.environments import Environment, Observation`."""

from strop.environments.base import Environment, Observation
from strop.environments.tool_calls import Call

__all__ = ["Call", "Environment", "Observation"]
