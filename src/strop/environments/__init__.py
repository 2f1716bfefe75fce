"""Environments that answer actions. `from strop.environments import Environment, Observation`."""

from strop.data.tool_calls import Call
from strop.environments.base import Environment, Observation
from strop.environments.tool_environment import ToolEnvironment
from strop.environments.tools import Tool, ToolError, ToolsUnavailable, ToolTimeout
from strop.support.exits import Exit

__all__ = [
    "Call",
    "Environment",
    "Exit",
    "Observation",
    "Tool",
    "ToolEnvironment",
    "ToolError",
    "ToolTimeout",
    "ToolsUnavailable",
]
