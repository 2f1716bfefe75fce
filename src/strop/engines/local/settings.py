"""The settings of the local engine, which samples with current or with earlier weights."""

import re
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from strop.engines.base import Engine
from strop.engines.local.engine import LocalEngine
from strop.engines.local.stale_weights import StaleWeightsEngine
from strop.engines.open import EngineSettings
from strop.support.errors import UserError


class LocalSettings(EngineSettings):
    """A model in this process."""

    bounded_by: ClassVar[str] = "cache_tokens"
    staleness: int = Field(
        default=0, ge=0, description="steps by which sampling weights lag behind trained weights"
    )
    cache_tokens: int = Field(
        default=0,
        ge=0,
        le=2**40,
        description="tokens in the cache: number of sequences times the longest; 0: no bound",
    )
    speculate: int = Field(
        default=0,
        ge=0,
        le=64,
        description="most tokens that an answer drafts per step from its group's other answers",
    )
    cuda_graphs: bool = Field(
        default=True, description="on a GPU, decoding passes are recorded once as CUDA graphs"
    )

    def check(self, num_steps: int) -> None:
        """Raise UserError for a staleness that no step of the run would reach."""
        if self.staleness >= num_steps:
            raise UserError(
                f"engine.staleness is {self.staleness}, but the run has only {num_steps} steps: "
                "none would see rollouts so old; give training.steps more"
            )

    def newest(self) -> EngineSettings:
        """The same settings without staleness."""
        return self.model_copy(update={"staleness": 0})

    def copies(self) -> tuple[int, int]:
        """One copy to sample from, and the stored versions."""
        return (1, self.staleness + 1) if self.staleness else (0, 0)

    def open(self, model: Any, tokenizer: Any, *, num_slots: int, context_length: int) -> Engine:
        """Open the engine. Raises UserError when main memory has no room for the stored weights."""
        options: dict[str, Any] = {
            "num_slots": num_slots,
            "context_length": context_length,
            "max_cached_tokens": self.cache_tokens or None,
            "speculate": self.speculate,
            "cuda_graphs": self.cuda_graphs,
        }
        if not self.staleness:
            return LocalEngine(model, tokenizer, **options)
        trained = [p for p in model.parameters() if p.requires_grad]
        size = (self.staleness + 1) * sum(p.numel() * p.element_size() for p in trained)
        room = free_memory()
        if room is not None and size > room:
            raise UserError(
                f"engine.staleness={self.staleness} holds the weights of {self.staleness + 1} "
                f"steps, {size / 2**30:.1f} GiB, and main memory has {room / 2**30:.1f} GiB free: "
                "give a smaller one, or adapters with model.lora_rank"
            )
        return StaleWeightsEngine(model, tokenizer, staleness=self.staleness, **options)


def free_memory() -> int | None:
    """Bytes of main memory that are available; None where that is unknown."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None
