"""Checkpoints of models that were trained on parts of the data, merged into one.

    from strop.evaluation.merge_weights import average, by_inverse_loss, greedy, read, write
    write(average([read(a), read(b)]), a, "merged")

Source: arXiv 2602.09021 (model arithmetic: average, inverse-loss weights, greedy). Weights by
gradient descent on a validation loss are left out: they need a training run.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from strop._writing import check_room, writing
from strop.errors import UserError
from strop.training.checkpoint import ROOM, SUMS

Weights = dict[str, Tensor]


def read(folder: Path | str) -> Weights:
    """The weights of a checkpoint folder. Raises UserError when it has no safetensors file."""
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder} holds no model.safetensors: give a checkpoint's folder")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def write(weights: Weights, like: Path | str, folder: Path | str) -> Path:
    """A checkpoint with these weights and all else of the folder `like` that is of the model.

    Raises RunStopped on a full disk and leaves no half of one.
    """
    place = Path(folder)
    if place.exists():
        raise UserError(f"{place} is there already: give another folder")
    unfinished = place.with_name(f".{place.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    needed = sum(tensor.numel() * tensor.element_size() for tensor in weights.values()) + ROOM
    what = f"the model {place.name}"
    check_room(place.parent, what, needed)
    try:
        with writing(place.parent, what, needed, (OSError, RuntimeError, SafetensorError)):
            unfinished.mkdir(parents=True)
            for file in Path(like).iterdir():
                if file.is_file() and file.suffix != ".safetensors" and not _of_training(file):
                    shutil.copy(file, unfinished / file.name)
            contiguous = {name: tensor.contiguous() for name, tensor in weights.items()}
            save_file(contiguous, unfinished / "model.safetensors", metadata={"format": "pt"})
            unfinished.rename(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return place


def _of_training(file: Path) -> bool:
    """Whether it is of the run, or of how the weights were spread over files, or their sums."""
    return file.suffix == ".pt" or file.name == SUMS or "index" in file.name


def average(models: Sequence[Weights], shares: Sequence[float] | None = None) -> Weights:
    """sum_i share_i weights_i, taken in float64; without shares all weigh the same.

    Shares are divided by their sum. Raises UserError when names or shapes differ.
    """
    shares = [1.0] * len(models) if shares is None else list(shares)
    if not models or len(shares) != len(models) or min(shares) < 0 or sum(shares) == 0:
        raise UserError("average needs models, and a share of at least 0 for each, not all 0")
    first, whole = models[0], sum(shares)
    for other in models[1:]:
        if {n: t.shape for n, t in other.items()} != {n: t.shape for n, t in first.items()}:
            raise UserError("these checkpoints are of different models: names or shapes differ")
    return {
        name: sum(
            (m[name].double() * (share / whole) for m, share in zip(models, shares, strict=True)),
            start=first[name].double() * 0,
        ).to(first[name].dtype)
        for name in first
    }


def by_inverse_loss(models: Sequence[Weights], losses: Sequence[float]) -> Weights:
    """The average with shares 1 / loss. Raises UserError for a loss of 0 or less."""
    if len(losses) != len(models) or any(loss <= 0 for loss in losses):
        raise UserError("by_inverse_loss needs one loss above 0 for each model")
    return average(models, [1 / loss for loss in losses])


def greedy(
    models: Sequence[Weights], score: Callable[[Weights], float]
) -> tuple[Weights, list[int]]:
    """The average that grows while it gets better, and the models in it.

    Models are tried once each, the best alone first; one stays in where the average's score rises.
    """
    alone = [score(model) for model in models]
    order = sorted(range(len(models)), key=lambda i: -alone[i])
    if not order:
        raise UserError("greedy needs at least one model")
    taken, best = [order[0]], alone[order[0]]
    for i in order[1:]:
        found = score(average([models[j] for j in [*taken, i]]))
        if found > best:
            taken, best = [*taken, i], found
    return average([models[j] for j in taken]), taken
