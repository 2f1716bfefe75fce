"""Low-rank adapters through PEFT: only they are trained, the model beneath stays as it is.

    y = W x + alpha / rank * B A x         A [rank, in], B [out, rank], B = 0 at the start

PEFT puts A and B beside the linear layers of the model, in place, so trunk, head, engine and
learner see the model that they always see. The reference policy is the same model with the
adapters switched off: no second copy. Source: arXiv 2106.09685.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from strop.support.errors import UserError
from strop.support.files import json_of

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Lora:
    """Which adapters to train. No targets: every linear layer but the head."""

    rank: int
    alpha: int = 0  # 0: twice the rank
    targets: tuple[str, ...] = ()  # last parts of module names: q_proj, v_proj


def library() -> Any:
    """PEFT. Raises UserError naming the extra where it is not installed."""
    try:
        import peft
    except ImportError as error:
        raise UserError("adapters need PEFT: pip install 'strop[lora]'") from error
    return peft


def add(model: Any, lora: Lora, seed: int) -> Any:
    """Add new adapters to the layers of `model`; returns the PeftModel around it.

    The start depends on `seed` alone. Raises UserError for targets that the model has not, and
    for its embeddings or head, which strop reads apart from the rest.
    """
    from transformers.pytorch_utils import Conv1D

    peft = library()
    names = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear | Conv1D)]
    known = sorted({name.rpartition(".")[2] for name in names} - {_head_name(model)})
    if wrong := [target for target in lora.targets if target not in known]:
        raise UserError(f"model.lora_targets: no layer {wrong[0]!r}; choose from {known}")
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha or 2 * lora.rank,
        target_modules=list(lora.targets or known),
        fan_in_fan_out=any(isinstance(m, Conv1D) for m in model.modules()),
    )
    with torch.random.fork_rng(devices=[]), _quietly():
        torch.manual_seed(seed)
        return peft.get_peft_model(model, settings)


def read(model: Any, folder: Path) -> Any:
    """Add the saved adapters of `folder` to the layers of `model`; returns the PeftModel.

    Raises UserError when they do not fit.
    """
    peft = library()
    try:
        with _quietly():
            return peft.PeftModel.from_pretrained(model, str(folder))
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise UserError(
            f"the adapter in {folder} does not fit the model: {_first(error)}"
        ) from error


def load_weights(adapter: Any, folder: Path) -> None:
    """Set the adapters' numbers to those saved in `folder`. Raises UserError when they differ."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    peft = library()
    if not is_adapter(folder):
        raise UserError(f"the checkpoint {folder} holds a whole model, the run trains an adapter")
    try:
        saved = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise UserError(f"the adapter in {folder} cannot be read: {_first(error)}") from error
    own = peft.get_peft_model_state_dict(adapter)
    shapes = {name: value.shape for name, value in saved.items()}
    if shapes != {name: value.shape for name, value in own.items()}:
        raise UserError(
            f"the adapter in {folder} has other layers or another rank than the run's: give the "
            "model, model.lora_rank and model.lora_targets that it was started with"
        )
    peft.set_peft_model_state_dict(adapter, saved)


def save(adapter: Any, folder: Path) -> None:
    """Write the adapters in PEFT's layout."""
    adapter.save_pretrained(folder, safe_serialization=True, save_embedding_layers=False)


def merge(adapter: Any) -> Any:
    """The plain model with W + alpha / rank * B A in place of W."""
    return adapter.merge_and_unload()


def is_adapter(folder: str | Path) -> bool:
    """Whether `folder` holds an adapter and no whole model."""
    return (Path(folder) / CONFIG).is_file()


def base_of(folder: str | Path) -> str:
    """The model that an adapter was trained on, as it was named. Raises UserError."""
    try:
        settings = json_of((Path(folder) / CONFIG).read_bytes())
        return str(settings["base_model_name_or_path"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{folder}/{CONFIG} does not name the adapter's model") from error


@contextmanager
def _quietly() -> Iterator[None]:
    """PEFT reads an attribute of the model that transformers is renaming."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        yield


def _head_name(model: Any) -> str:
    head = model.get_output_embeddings()
    return next((name.rpartition(".")[2] for name, m in model.named_modules() if m is head), "")


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
