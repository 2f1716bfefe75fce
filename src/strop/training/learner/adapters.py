"""Low-rank adapters through PEFT: only they are trained, the model beneath stays as it is.

    y = W x + alpha / rank * B A x         A [rank, in], B [out, rank], B = 0 at the start

PEFT puts A and B beside the linear layers of the model, in place, so trunk, head, engine and
learner see the same model as without adapters. The reference policy is that model with the
adapters switched off: no second copy. Source: arXiv 2106.09685.

Several adapters of one model have a folder each, named like the adapter; `support.adapted` selects
the one that a pass runs under.
"""

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from strop.support import adapted, linear
from strop.support.errors import UserError, first_line, needs_extra
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
    with needs_extra("adapters need PEFT", "lora"):
        import peft
    return peft


def add(model: Any, lora: Lora, seed: int, names: Sequence[str] = ()) -> Any:
    """Add new adapters to the layers of `model`; returns the PeftModel around it.

    names: those of several adapters, which all start alike; none: one adapter. The start depends on
    `seed` alone. Raises UserError for targets that the model does not have, and for its embeddings
    or head, which strop reads separately.
    """
    from transformers.pytorch_utils import Conv1D

    peft = library()
    paths = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear | Conv1D)]
    known = sorted({name.rpartition(".")[2] for name in paths} - {_head_name(model)})
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
        try:
            made = peft.get_peft_model(model, settings, *names[:1])
        except ValueError as error:  # it takes no adapters of some layers, such as Mamba's
            raise UserError(
                f"model.lora_targets: {first_line(error)} Choose from {known}"
            ) from error
        for name in names[1:]:
            torch.manual_seed(seed)
            made.add_adapter(name, copy.copy(settings))
    return _together(made, model, names)


def read(model: Any, folder: Path, names: Sequence[str] = ()) -> Any:
    """Add the saved adapters of `folder` to the layers of `model`; returns the PeftModel.

    names: those of several adapters. Raises UserError when they do not fit.
    """
    peft = library()
    places = {name: Path(folder) / name for name in names} or {"default": Path(folder)}
    made = None
    for name, place in places.items():
        with _fitting(place):
            if made is None:
                made = peft.PeftModel.from_pretrained(model, str(place), adapter_name=name)
            else:
                made.load_adapter(str(place), name)
    return _together(made, model, names)


def _together(made: Any, model: Any, names: Sequence[str]) -> Any:
    """The PeftModel; with several adapters its passes run each row under the row's own.

    Raises UserError where layers share a weight: adapters of each could not be merged into it.
    """
    owners: dict[int, str] = {}
    for path, module in made.named_modules():
        weight = getattr(getattr(module, "base_layer", None), "weight", None)
        if weight is not None and (other := owners.setdefault(id(weight), path)) != path:
            raise UserError(
                f"model.lora_targets: {other} and {path} share their weight, so the adapters "
                "of both could not be merged into it: name other layers"
            )
    if names:
        adapted.route(model, names[0]).known = list(names)
        for name in names:
            for weight in adapted.weights_of(model, name):
                weight.requires_grad_(True)
    return made


def add_frozen(adapter: Any, name: str, folder: Path) -> None:
    """Add a saved adapter that is not trained. Raises UserError when it does not fit."""
    if not is_adapter(folder):
        raise UserError(f"{folder} holds no adapter ({CONFIG}): give the folder of one")
    with _adding(adapter, name), _fitting(folder):
        adapter.load_adapter(str(folder), name)
    settings = adapter.peft_config[name]
    if settings.use_dora or settings.modules_to_save or settings.bias != "none":
        raise UserError(f"the adapter in {folder} is not plain: it has DoRA, biases or modules")


def copy_frozen(adapter: Any, source: str, name: str) -> None:
    """Add a frozen copy of an adapter's current weights."""
    model = adapter.get_base_model()
    with _adding(adapter, name), torch.random.fork_rng(devices=[]), _quietly():
        adapter.add_adapter(name, copy.copy(adapter.peft_config[source]))
    own = zip(adapted.weights_of(model, name), adapted.weights_of(model, source), strict=True)
    with torch.no_grad():
        for new, old in own:
            new.copy_(old)


@contextmanager
def _adding(adapter: Any, name: str) -> Iterator[None]:
    """Inside, PEFT adds an adapter, which changes the trained weights and the mode of the model;
    afterwards both are restored, the new layers are of the same kind as the others, and passes may
    run under the adapter.
    """
    model = adapter.get_base_model()
    routes = adapted.routes_of(model)
    assert routes is not None, "the model has several adapters"
    trained = {path for path, weight in model.named_parameters() if weight.requires_grad}
    training = model.training
    yield
    model.train(training)
    for path, weight in model.named_parameters():
        weight.requires_grad_(path in trained)
    if any(type(each) is linear.Linear for each in model.modules()):
        linear.use_in(model)
    routes.known.append(name)


def remove(adapter: Any, name: str) -> None:
    """Remove a frozen adapter."""
    routes = adapted.routes_of(adapter.get_base_model())
    assert routes is not None, "the model has several adapters"
    adapter.delete_adapter(name)
    routes.known.remove(name)


def load_weights(adapter: Any, folder: Path, names: Sequence[str] = ()) -> None:
    """Load the adapters' weights from `folder`; names: those of several adapters, which have a
    folder each. Raises UserError when they do not fit.
    """
    for name in names:
        _load(adapter, folder / name, name)
    if not names:
        _load(adapter, folder, "default")


def _load(adapter: Any, folder: Path, name: str) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    peft = library()
    if not is_adapter(folder):
        raise UserError(f"the checkpoint {folder} holds a whole model, the run trains an adapter")
    try:
        saved = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise UserError(f"the adapter in {folder} cannot be read: {first_line(error)}") from error
    own = peft.get_peft_model_state_dict(adapter, adapter_name=name)
    shapes = {name: value.shape for name, value in saved.items()}
    if shapes != {name: value.shape for name, value in own.items()}:
        raise UserError(
            f"the adapter in {folder} has other layers or another rank than the run's: give the "
            "model, model.lora_rank and model.lora_targets that it was started with"
        )
    peft.set_peft_model_state_dict(adapter, saved, adapter_name=name)


def save(adapter: Any, folder: Path, names: Sequence[str] = ()) -> None:
    """Write the adapters in PEFT's layout; several in folders of their names."""
    options = {"selected_adapters": list(names)} if names else {}
    adapter.save_pretrained(folder, safe_serialization=True, save_embedding_layers=False, **options)
    (folder / "README.md").unlink(missing_ok=True)  # an empty template of PEFT's


def merge(adapter: Any) -> Any:
    """The plain model with W + alpha / rank * B A in place of W. Raises UserError for an adapter
    that no plain model is the same as.
    """
    model = adapter.get_base_model()
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    if ends[0].weight is ends[1].weight and any(hasattr(end, "get_delta_weight") for end in ends):
        raise UserError(
            "the adapter changes the embeddings or the head, which share their weights, so that no "
            "plain model is the same: load it with PEFT, beside its model"
        )
    try:
        return adapter.merge_and_unload()
    except (RuntimeError, ValueError) as error:
        raise UserError(f"the adapter cannot be merged: {first_line(error)}") from error


def is_adapter(folder: str | Path) -> bool:
    """Whether `folder` holds an adapter and no whole model."""
    return (Path(folder) / CONFIG).is_file()


def is_snapshot(name: str) -> bool:
    """Whether an adapter of this name is a copy of a trained one, `attacker@50`."""
    return "@" in name


def base_of(folder: str | Path) -> str:
    """The name of the model that an adapter was trained on. Raises UserError."""
    try:
        settings = json_of((Path(folder) / CONFIG).read_bytes())
        return str(settings["base_model_name_or_path"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{folder}/{CONFIG} does not name the adapter's model") from error


@contextmanager
def _fitting(folder: Path) -> Iterator[None]:
    """Inside, an adapter is read. Raises UserError where it does not fit the model."""
    try:
        with _quietly():
            yield
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise UserError(
            f"the adapter in {folder} does not fit the model: {first_line(error)}"
        ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Silences two warnings of PEFT: it reads an attribute of the model that transformers is
    renaming, and it has patterns for fused experts, also where they are none of its targets.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys", RuntimeWarning)
        yield


def _head_name(model: Any) -> str:
    head = model.get_output_embeddings()
    return next((name.rpartition(".")[2] for name, m in model.named_modules() if m is head), "")
