"""The settings of vLLM itself, wherever it runs."""

from __future__ import annotations

import shlex
from typing import Any, ClassVar

from pydantic import Field, field_validator

from strop.engines.open import EngineSettings
from strop.engines.weights_folder import adapters_of, rank_of
from strop.support.errors import UserError

PROCESSORS = "--logits-processors"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # of adapters, that vLLM accepts


class VllmOptions(EngineSettings):
    """A vLLM with the weights of a model of this process."""

    needs_model: ClassVar[bool] = True
    bounded_by: ClassVar[str] = "max_model_len"
    dtype: str = Field(default="", description="vLLM's dtype; empty: the trained model's")
    gpu_memory_utilization: float = Field(
        default=0.4, gt=0, le=1,
        description="share of GPU memory that vLLM takes, on a CPU of main memory",
    )  # fmt: skip
    max_model_len: int = Field(
        default=0, ge=0, description="longest sequence; 0: as long as fits into memory"
    )
    args: str = Field(default="", description="further options of `vllm serve`, as in a shell")

    @field_validator("args")
    @classmethod
    def _args_are_words(cls, args: str) -> str:
        for word in shlex.split(args):  # its ValueError says what is open
            if word.partition("=")[0] in ("--host", "--port", "--uds"):
                raise UserError(f"strop chooses vLLM's address, so leave {word} out")
        return args

    def options(self, model: Any, *more: str) -> list[str]:
        """Options of `vllm serve`; if one is given twice, the later counts."""
        return [
            "--dtype", self.dtype or str(model.dtype).removeprefix("torch."),
            "--gpu-memory-utilization", str(self.gpu_memory_utilization),
            "--max-model-len", str(self.max_model_len or "auto"),
            *more,
            *shlex.split(self.args),
        ]  # fmt: skip


def adapter_options(model: Any) -> list[str]:
    """vLLM's options that make room for the model's adapters, and for one more newest version."""
    wanted = rank_of(model)
    rank = next((rank for rank in RANKS if rank >= wanted), None)
    if rank is None:
        raise UserError(
            f"model.lora_rank is {wanted}, and vLLM takes adapters up to rank {RANKS[-1]}: lower "
            "it, or take engine.kind=local"
        )
    room = str(1 + len(adapters_of(model)))
    return ["--enable-lora", "--max-loras", room, "--max-lora-rank", str(rank)]
