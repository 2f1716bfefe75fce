"""Recorded expert trajectories as episodes: the policy acts, the recording gives observations.

Source: arXiv 2509.11543. docs/ENVIRONMENTS.md, "Recorded expert trajectories", has the file's form.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from strop.data.tool_calls import tagged_calls
from strop.environments.base import Environment, Observation, check_number
from strop.environments.row_files import RowFiles
from strop.support.errors import UserError

SCORINGS = ("paper", "code")
FIELD = re.compile(r"\{(observation|action)\}")


class Judged(NamedTuple):
    """What is right about an action: it is readable, of the right kind, equal to the expert's."""

    readable: bool
    kind: bool
    exact: bool


class Replay(Environment):
    """Options: file (trajectories), validation_file and heldout_file (those of these splits),
    eps_patch (wrong actions that are patched in an episode; -1: all), scoring ("paper" or "code"),
    rewrites (each turn's context anew), earlier (how an earlier step is written there, with
    {observation} and {action}), patch (how the expert's action is shown where contexts grow, with
    {action}), max_action_tokens.

    Derive a class and override `judge` where actions are compared otherwise.
    """

    def __init__(
        self, file: str, validation_file: str = "", eps_patch: int = 1, scoring: str = "paper",
        rewrites: bool = True, earlier: str = "{observation}\n{action}\n",
        patch: str = "The right action was: {action}\n", max_action_tokens: int = 256,
        heldout_file: str = "",
    ) -> None:  # fmt: skip
        check_number("replay: eps_patch", eps_patch, -1)
        check_number("replay: max_action_tokens", max_action_tokens, 1)
        if scoring not in SCORINGS:
            raise UserError(f"replay: scoring {scoring!r} is none of {', '.join(SCORINGS)}")
        for name, text, shown in (("patch", patch, ("action",)),
                                  ("earlier", earlier, ("observation", "action"))):  # fmt: skip
            for part in shown:
                if f"{{{part}}}" not in text:
                    raise UserError(f"replay: {name} must show {{{part}}}, it is {text!r}")
        self.rewrites, self.earlier = rewrites, earlier
        self.trajectories = RowFiles(
            "replay", "the trajectories", _trajectory, file, validation_file, heldout_file
        )
        every = map(self.trajectories.of, self.trajectories.files)
        self.eps_patch, self.scoring, self.patch = eps_patch, scoring, patch
        self.max_turns = max(len(t["steps"]) for rows in every for t in rows)
        self.max_tokens = max_action_tokens
        self.reward_range = (0.0, float(self.max_turns))
        self.steps: list[Mapping[str, str]] = []
        self.history = ""  # the context before the current observation
        self.place = self.patched = 0

    def reset(self, seed: int) -> Observation:
        """Begin the trajectory that the seed names."""
        row = self.trajectories.row(seed)
        self.steps, self.place, self.patched = row["steps"], 0, 0
        self.history = f"{row['prompt']}\n" if row.get("prompt") else ""
        return Observation(self.history + self.steps[0]["observation"], state="0,")

    def num_episodes(self) -> Mapping[str, int]:
        """The trajectories of each split's file."""
        return self.trajectories.num_episodes()

    def columns(self) -> Mapping[str, Any]:
        """The number of the expert's steps."""
        return {"num_steps": len(self.steps)}

    def step(self, action: str) -> Observation:
        """Compare the action with the expert's."""
        observation, expert = (
            self.steps[self.place]["observation"],
            self.steps[self.place]["action"],
        )
        judged = self.judge(action, expert)
        reward = step_reward(judged, self.scoring)
        self.place += 1
        shown = ""
        if not judged.exact:
            shown = self.patch.replace("{action}", expert)
            self.patched += 1
        out_of_patches = 0 <= self.eps_patch < self.patched
        if out_of_patches or self.place == len(self.steps):
            return Observation("", reward, True, valid=judged.readable, match=judged.exact)
        now = self.steps[self.place]["observation"]
        if self.rewrites:
            stands = {"observation": observation, "action": action if judged.exact else expert}
            self.history += FIELD.sub(lambda found: stands[found[1]], self.earlier)
            shown, state = self.history, f"{self.place},{self.patched},{self.history}"
        else:
            state = f"{self.place},{self.patched},{shown}"
        return Observation(
            shown + now, reward, state=state, valid=judged.readable, match=judged.exact
        )

    def judge(self, action: str, expert: str) -> Judged:
        """Compare tagged tool calls as calls, other actions word by word.

        A call's kind is its name, a text's its first word; case matters in arguments and texts.
        """
        calls, wanted = tagged_calls(action), tagged_calls(expert)
        if wanted:
            names = [call.name for call in calls]
            readable = bool(calls) and all(names)
            kind = readable and names == [call.name for call in wanted]
            return Judged(readable, kind, kind and calls == wanted)
        words, right = action.split(), expert.split()
        return Judged(bool(words), bool(words) and words[:1] == right[:1], words == right)


def step_reward(judged: Judged, scoring: str) -> float:
    """The reward of an action, from 0 to 1.

    paper: 0.1 readable + 0.4 kind + 0.5 exact, each only if the ones before it hold; code: 0.1
    readable + 0.9 a, with a = 1 exact, 0.5 of the right kind, 0.1 readable.
    """
    readable = judged.readable
    kind, exact = readable and judged.kind, readable and judged.kind and judged.exact
    if scoring == "paper":
        return 0.1 * readable + 0.4 * kind + 0.5 * exact
    return 0.1 * readable + 0.9 * (1.0 if exact else 0.5 if kind else 0.1 * readable)


def _trajectory(row: Any, place: str, file: Path) -> dict[str, Any]:
    steps = row.get("steps") if isinstance(row, dict) else None
    right = isinstance(steps, list) and steps and all(
        isinstance(step, dict) and all(isinstance(step.get(name), str) and step[name].strip()
                                       for name in ("observation", "action"))
        for step in steps
    )  # fmt: skip
    if not right:
        raise UserError(
            f'{place} must have "steps", a list of {{"observation": text, "action": text}}'
        )
    return row
