"""The section of a run's settings that says which adapter plays which role."""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from strop.support.about import BASE
from strop.training.settings.sections import MOST, Section

ADAPTER = re.compile(r"[A-Za-z0-9_-]+")
EACH = "each"
PREFIX = "lora_"  # of weights: PEFT accepts no part of it as an adapter's name
# PEFT saves `default` outside a folder of its name; `opponent_1` plays role 1 and is from a folder.
TAKEN = re.compile(r"default|opponent_\d+")


class RolesSettings(Section):
    """Who plays the roles of an episode, if one policy does not play all of them."""

    play: dict[str, str] | Literal["each"] = Field(
        default={},
        description="the player of each role, {0: attacker, 1: defender}; a name is an adapter "
        "that is trained (model.lora_rank), base the model without one, a path the folder of an "
        "adapter that is not trained; each: one adapter per role; empty: one policy plays all",
    )
    swap_every: int = Field(
        default=0, ge=0,
        description="steps after which each role passes to the next role's player; 0: never",
    )  # fmt: skip
    reset_on_swap: bool = Field(
        default=True, description="a swap of roles resets the optimiser's averages"
    )
    league_every: int = Field(
        default=0, ge=0,
        description="steps between copies of the adapters that play as opponents; 0: no league",
    )  # fmt: skip
    league_share: float = Field(
        default=0.5, ge=0, le=1, description="games in which all but one role are played by copies"
    )
    league_size: int = Field(
        default=8, ge=1, le=MOST, description="newest copies of an adapter that take part"
    )
    league_k: float = Field(
        default=4.0, gt=0, le=400, description="largest change of an Elo rating by a game, points"
    )

    @field_validator("play", mode="before")
    @classmethod
    def _roles_are_numbers(cls, value: Any) -> Any:
        """Convert roles to text, as they stand in a file."""
        if isinstance(value, str) and value != EACH:
            raise ValueError("give each, or a player for each role, {0: attacker, 1: defender}")
        if not isinstance(value, dict):
            return value
        return {str(role): player for role, player in value.items()}

    @model_validator(mode="after")
    def _can_be_played(self) -> "RolesSettings":
        if isinstance(self.play, str):
            return self
        for role, player in self.play.items():
            if not role.isdigit():
                raise ValueError(f"roles.play: {role!r} is no role: give whole numbers from 0")
            if player in PREFIX or TAKEN.fullmatch(player):
                raise ValueError(
                    f"roles.play: PEFT or strop itself uses the name {player!r}: take another"
                )
        if self.play and not self.trained:
            raise ValueError("roles.play trains nobody: give a role an adapter's name")
        further = {"swap_every": self.swap_every, "league_every": self.league_every}
        for name, number in further.items():
            if number and not self.play:
                raise ValueError(f"roles.{name} needs players: give roles.play")
        if self.swap_every and self.league_every:
            raise ValueError("roles that are swapped have no league: leave one of the two out")
        return self

    @property
    def players(self) -> dict[int, str]:
        """The adapter that plays each role; one from a folder is named `opponent_ROLE`."""
        assert not isinstance(self.play, str), "the configuration writes them down"
        return {
            int(role): f"opponent_{role}" if _is_path(player) else player
            for role, player in sorted(self.play.items(), key=lambda each: int(each[0]))
        }

    @property
    def trained(self) -> tuple[str, ...]:
        """The adapters that are trained, in the order of their roles."""
        found = self.players.items()
        known = {role for role, name in found if name != BASE and role not in self._folders}
        return tuple(dict.fromkeys(name for role, name in found if role in known))

    @property
    def frozen(self) -> dict[str, Path]:
        """The folders of adapters that are not trained, by name."""
        return {f"opponent_{role}": folder for role, folder in self._folders.items()}

    @property
    def _folders(self) -> dict[int, Path]:
        assert not isinstance(self.play, str)
        return {int(r): Path(player) for r, player in self.play.items() if _is_path(player)}


def _is_path(player: str) -> bool:
    return ADAPTER.fullmatch(player) is None
