"""The table of engines, and the settings that each is opened from: the section [engine] of a run.

A new engine is one file in this folder and one line of `ENGINES`. The file has a subclass of
`EngineSettings`: its fields are the engine's own settings (`engine.NAME` on the command line), its
`open` returns the engine.
"""

import importlib
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from strop.engines.base import Engine
from strop.support.errors import UserError

# kind -> the class of its settings, or "module:class"
ENGINES: dict[str, Any] = {
    "local": "strop.engines.local.settings:LocalSettings",
    "completions": "strop.engines.completions:CompletionsSettings",
    "vllm": "strop.engines.vllm.server_engine:VllmSettings",
    "vllm_here": "strop.engines.vllm.in_process:InProcessSettings",
    "tinker": "strop.integrations.tinker:TinkerSettings",
}


class EngineSettings(BaseModel):
    """The engine that samples answers; every kind of engine adds fields of its own.

    needs_model: the engine samples with a model of this process, which is loaded for it. trains:
    the engine's service holds the model and trains it; `load` returns a stand-in for this process.
    bounded_by: the setting, if any, that bounds the tokens of a prompt with its answer.
    """

    model_config = ConfigDict(extra="forbid", validate_default=True)
    needs_model: ClassVar[bool] = True
    trains: ClassVar[bool] = False
    bounded_by: ClassVar[str] = ""
    kind: str = Field(default="local", description=f"engine that samples: {', '.join(ENGINES)}")

    @field_validator("kind")
    @classmethod
    def _is_known(cls, kind: str) -> str:
        if kind not in ENGINES:
            raise UserError(f"no such engine; there are {', '.join(ENGINES)}")
        return kind

    def open(self, model: Any, tokenizer: Any, *, num_slots: int, context_length: int) -> Engine:
        """Open the engine. Raises UserError where it is not available.

        model: the one that is trained or scored, None where `needs_model` is False. num_slots: most
        sequences at once. context_length: most tokens of a sequence.
        """
        raise UserError(f"{type(self).__name__} has no method open: give it one, for an engine")

    def load(self, config: Any, source: str) -> Any:
        """A `Loaded` that stands for a model which the engine's service trains.

        config: the run's. source: a checkpoint or another model; empty: the run's own. Raises
        UserError where it is not available.
        """
        raise NotImplementedError(f"{type(self).__name__} trains and has no method load")

    def check(self, num_steps: int) -> None:
        """Raise UserError for settings that make no sense in a run of so many steps."""

    def check_method(self, method: Any, line: str) -> None:
        """Raise UserError for a method, of the recipe `line`, that the service cannot train."""

    @property
    def most_tokens(self) -> int:
        """Most tokens of a prompt with its answer; 0: there is no bound."""
        return int(getattr(self, self.bounded_by)) if self.bounded_by else 0

    def check_longest(self, num_tokens: int) -> None:
        """Raise UserError where a prompt with its answer, of so many tokens, is too long."""
        if 0 < self.most_tokens < num_tokens:
            raise UserError(
                f"engine.{self.bounded_by} is {self.most_tokens}, but a prompt with its answer may "
                f"come to {num_tokens} tokens: raise it, or lower rollout.max_tokens"
            )

    def newest(self) -> "EngineSettings":
        """The settings of an engine that samples with the newest weights, for scores of them."""
        return self

    def copies(self) -> tuple[int, int]:
        """Further copies of the trained weights: on the model's device, in main memory."""
        return 0, 0


def settings_of(kind: str) -> type[EngineSettings]:
    """The settings class of a kind of engine; the common one where there is no such kind."""
    place = ENGINES.get(kind, EngineSettings)
    if isinstance(place, str):
        module, _, name = place.partition(":")
        place = getattr(importlib.import_module(module), name)
    found: type[EngineSettings] = place
    if found is not EngineSettings and found.open is EngineSettings.open:
        raise UserError(
            f"the engine {kind!r}: {found.__name__} has no method open(model, tokenizer, *, "
            "num_slots, context_length), which returns the engine: add it"
        )
    return found


def kinds_with(path: str) -> list[str]:
    """The kinds of engine that have this setting, `engine.NAME`, beside the common ones."""
    section, _, name = path.partition(".")
    if section != "engine" or name in EngineSettings.model_fields:
        return []
    return [kind for kind in ENGINES if name in settings_of(kind).model_fields]


def read(given: Any) -> EngineSettings:
    """The settings from plain values. Raises pydantic's ValidationError."""
    if isinstance(given, EngineSettings):
        return given
    kind = given.get("kind", "local") if isinstance(given, dict) else "local"
    return settings_of(str(kind)).model_validate(given)
