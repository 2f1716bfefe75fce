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
    would run code that the model writes without isolation.

    given: sections that the user's options replace, `task_config` apart from the rest of `data`;
    `source`: the run. Imports nothing.
    """
    if named := names(settings, given):
        raise UserError(
            f"{source}/config.toml names {', '.join(named)}, which is not strop's own or runs code "
            "without isolation: look at it and allow it with --trust-files, or give other rewards, "
            "another task or engine"
        )


def names(settings: "RunConfig", given: Mapping[str, Any] = MappingProxyType({})) -> list[str]:
    """Code and servers that the configuration names, except in the sections in `given`."""
    return [name for section, name in _named(settings) if section not in given]


def _named(settings: "RunConfig") -> Iterator[tuple[str, str]]:
    """Section and name of each file, module, judge, server and command."""
    written: list[Any] = [settings, *settings.phases.values()]
    last = written[-1]
    method: Any = last.stages.get("rollout", settings.recipe)
    for text in [method] if isinstance(method, str) else method:
        yield from (("method", name) for name in (own(text) if text else ()))
    if "rollout" not in last.stages:
        for each in written:
            yield from (("method", f"{stage} = {text}") for stage, text in each.stages.items())
        for phase in settings.phases.values():
            yield from (("method", name) for name in (own(phase.recipe) if phase.recipe else ()))
    judges = [OF_A_SET.sub(r"\g<source>", each) for each in settings.evaluation.reward]
    for section, sources in (("reward", settings.reward.functions), ("evaluation", judges)):
        for text in sources:
            source = reward_source.parse(text)
            if source.kind in ("function", "judge", "pickled") or source.options.get(
                "without_isolation"
            ):
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
