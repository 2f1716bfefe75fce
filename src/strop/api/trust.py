"""Code and servers that a run folder's configuration names; they are used only if allowed."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from strop.environments.base import JOINED
from strop.environments.verifiers_server import FAMILY as VERIFIERS
from strop.method.values import own
from strop.rewards import source as reward_source
from strop.support.errors import UserError
from strop.training.settings.sections import OF_A_SET

if TYPE_CHECKING:
    from strop.training.settings.config import RunConfig

# Tasks that name no file or module to import and no server.
PLAIN = re.compile(r"([\w.-]+=)?([^:]*|(reasoning_gym|gym|textarena|traces):[^:]*)")
NEAR = ("", "local", "auto")  # addresses of no Ray cluster, or of one of this machine
_made: dict[Path, bytes] = {}  # by folder: config.toml of the runs that this process trains


def remember(folder: Path) -> None:
    """Remember that this process trains the run in a folder, so its config.toml is trusted."""
    _made[folder.resolve()] = (folder / "config.toml").read_bytes()


def made_here(folder: Path) -> bool:
    """Whether this process trained the run in a folder, and its config.toml is still the same."""
    file, known = folder / "config.toml", _made.get(folder.resolve())
    return known is not None and file.is_file() and file.read_bytes() == known


def check_trust(settings: "RunConfig", given: Mapping[str, Any], source: str) -> None:
    """Raise UserError where a run's own configuration names code or servers that would be used, or
    would run code that the model writes without isolation or on a server.

    given: sections that the user's options replace, `task_config` apart from the rest of `data`;
    `source`: the run. Imports nothing.
    """
    if named := names(settings, given):
        raise UserError(
            f"{source}/config.toml names {', '.join(named)}, which is not strop's own or runs code "
            "without isolation: look at it and allow it with --trust-files, or give other rewards, "
            "another task, engine or ray.address"
        )


def names(settings: "RunConfig", given: Mapping[str, Any] = MappingProxyType({})) -> list[str]:
    """Code and servers that the configuration names, except in the sections in `given`."""
    return [name for section, name in _named(settings) if section not in given]


def _named(settings: "RunConfig") -> Iterator[tuple[str, str]]:
    """Section and name of each file, module, judge, server and command."""
    phases: list[Any] = [*settings.phases.values()]
    each_rollout = [each.stages.get("rollout", "") for each in phases or [settings]]
    for given in each_rollout:
        for text in [given] if isinstance(given, str) else given:
            yield from (("method", name) for name in (own(text) if text else ()))
    if not all(each_rollout):  # then the whole method is built
        for each in (settings, *phases):
            yield from (("method", name) for name in (own(each.recipe) if each.recipe else ()))
            yield from (("method", f"{stage} = {text}") for stage, text in each.stages.items())
    judges = [OF_A_SET.sub(r"\g<source>", each) for each in settings.evaluation.reward]
    for section, sources in (("reward", settings.reward.functions), ("evaluation", judges)):
        for text in sources:
            source = reward_source.parse(text)
            asks = source.options.get("without_isolation") or source.options.get("url")
            if asks or source.kind in ("function", "judge", "pickled"):
                yield section, text
    task = settings.data.task
    takes_files = task.startswith(("agent:", VERIFIERS))
    tasks = () if settings.data.files and not takes_files else task.split(JOINED)
    if any(not PLAIN.fullmatch(each) for each in tasks):
        yield "data", task
    options = settings.data.task_config
    for each in (options, *options.values()):  # of one environment, or of each in a mixture
        command = each.get("mcp") if isinstance(each, Mapping) else None
        if command and isinstance(command, str):  # tool_questions starts it
            yield "task_config", f"mcp = {command}"
    if settings.engine.kind != "local":
        yield "engine", f"engine {settings.engine.kind}"
    ray = settings.ray
    if ray.address not in NEAR and (ray.num_environments or ray.cpus_for_rewards):
        yield "ray", f"the Ray cluster {ray.address}"
