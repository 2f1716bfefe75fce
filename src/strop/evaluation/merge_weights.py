"""Merges checkpoints of one model, such as those trained on parts of the data, into one.

    models = [read(folder) for folder in folders]
    shares = descended_shares(models, answer_loss(folders[0], rows))
    write(average(models, shares), folders[0], "merged")

Source: arXiv 2602.09021 (model arithmetic); code OpenDriveLab/kai0, model_arithmetic. Differs from
it: the loss is always over all rows, where gradient descent there takes one batch after another.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from strop.data.encode import text_ids
from strop.support.errors import UserError
from strop.training.learner.models import load
from strop.training.loading import write_model

Weights = Mapping[str, Tensor]
# A loss of the weights; differentiable for `descended_shares`.
Loss = Callable[[Weights], Tensor]

EPS = 1e-8  # added to losses; from the released code
USUAL_LOSS = 0.05  # at this loss an adaptive gradient has the factor 1; from the released code


def read(folder: Path | str) -> Weights:
    """Read the weights of a model's folder, such as a checkpoint. Raises UserError."""
    model = load(str(folder)).model
    return {name: weight.detach() for name, weight in model.named_parameters()}


def write(weights: Weights, like: Path | str, folder: Path | str) -> Path:
    """Write a model with these weights and everything else of the folder `like`; returns its path.

    Raises UserError where `folder` already exists, RunStopped on a full disk.
    """
    place = Path(folder)
    if place.exists():
        raise UserError(f"{place} exists: give the name of a new folder")
    found = load(str(like))
    with torch.no_grad():
        for name, weight in found.model.named_parameters():
            weight.copy_(weights[name])
    write_model(found, place)
    return place


def average(models: Sequence[Weights], shares: Sequence[float] | None = None) -> Weights:
    """sum_i share_i weights_i, computed in float64; by default all shares are equal.

    Shares are divided by their sum. Raises UserError where names or shapes differ.
    """
    _check(models)
    shares = [1.0] * len(models) if shares is None else list(shares)
    if len(shares) != len(models) or not all(s >= 0 for s in shares) or sum(shares) == 0:
        raise UserError("average needs a share of at least 0 for each model, not all of them 0")
    whole, mixed = sum(shares), {}
    for name, first in models[0].items():
        total = torch.zeros_like(first, dtype=torch.float64)
        for model, share in zip(models, shares, strict=True):
            total += model[name].double() * (share / whole)
        mixed[name] = total.to(first.dtype)
    return mixed


def inverse_loss_shares(losses: Sequence[float]) -> list[float]:
    """Shares in proportion to 1 / loss^2. Raises UserError for a loss below 0, and for NaN."""
    if not losses or not all(loss >= 0 for loss in losses):
        raise UserError("inverse_loss_shares needs a loss of at least 0 for each model")
    inverse = [(loss + EPS) ** -2 for loss in losses]
    return [share / sum(inverse) for share in inverse]


def greedy_shares(models: Sequence[Weights], loss: Loss) -> list[float]:
    """Equal shares for the models that a greedy search adds to the average, 0 for the others.

    It starts from the best model alone. Each round tries all remaining models and adds the one
    that gives the average the lowest loss, and stops when none lowers it.
    """
    _check(models)
    taken, left, best = list[int](), list(range(len(models))), float("inf")
    while left:
        tried = [
            float(loss(average([models[j] for j in [*taken, i]])).detach().item()) for i in left
        ]
        lowest = min((each for each in tried if not math.isnan(each)), default=best)
        if lowest >= best:
            break
        best = lowest
        taken.append(left.pop(tried.index(best)))
    return [(i in taken) / max(len(taken), 1) for i in range(len(models))]


def descended_shares(
    models: Sequence[Weights], loss: Loss, *, rate: float = 0.05, iterations: int = 50,
    adaptive: bool = False,
) -> list[float]:  # fmt: skip
    """Shares w = softmax(u) by gradient descent: those with the lowest loss on the way.

        theta = sum_k w_k theta_k;   g_k = <dL / d theta, theta_k>
        dL / du_k = w_k (g_k - sum_j w_j g_j), times (L / 0.05)^2 if adaptive

    u starts at 0; Adam, with a cosine schedule of its rate down to a hundredth.
    """
    _check(models)
    u = torch.zeros(len(models), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([u], lr=rate)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations, rate * 0.01)
    best, found = float("inf"), [1 / len(models)] * len(models)
    for _ in range(iterations):
        shares = torch.softmax(u.detach(), 0)
        value, slope = _share_slope(models, loss, shares)
        if value < best:
            best, found = value, shares.tolist()
        u.grad = slope * (value / USUAL_LOSS) ** 2 if adaptive else slope
        optimiser.step()
        falling.step()
    return found


def _share_slope(models: Sequence[Weights], loss: Loss, shares: Tensor) -> tuple[float, Tensor]:
    """The loss at these shares, and its gradient by u [K] where shares are softmax(u)."""
    mixed = {n: w.requires_grad_() for n, w in average(models, shares.tolist()).items()}
    with torch.enable_grad():
        value = loss(mixed)
        slopes = torch.autograd.grad(value, list(mixed.values()), allow_unused=True)
    g = torch.zeros_like(shares)
    for name, slope in zip(mixed, slopes, strict=True):
        if slope is not None:
            g += torch.stack([(slope.double() * m[name].double()).sum() for m in models])
    return float(value.detach().item()), shares * (g - (shares * g).sum())


def answer_loss(folder: Path | str, rows: Sequence[Mapping[str, str]]) -> Loss:
    """A loss of weights: nats a token of given answers, rows with `prompt` and `completion`.

    folder: any of the models; its tokenizer is used. All rows form one batch, so give few. Raises
    UserError for rows without these, and for a prompt without a token.
    """
    if not rows or not all(row.keys() >= {"prompt", "completion"} for row in rows):
        raise UserError("answer_loss needs rows with a prompt and a completion")
    found = load(str(folder))
    tokens = partial(found.tokenizer, add_special_tokens=False)  # some begin every text with one
    texts = [
        (text_ids(r["prompt"], found.tokenizer), tokens(r["completion"]).input_ids) for r in rows
    ]
    if not all(prompt for prompt, _ in texts):
        raise UserError("answer_loss: a prompt has no token, so nothing precedes its answer")

    def loss(weights: Weights) -> Tensor:
        total, count = torch.zeros(()), 0
        for prompt, completion in texts:
            answer = [*completion, *found.end_ids]
            ids = torch.tensor([[*prompt, *answer]])
            given = {"input_ids": ids, "use_cache": False}
            logits = torch.func.functional_call(found.model, dict(weights), (), given).logits
            wanted = torch.tensor(answer)
            total = total + cross_entropy(
                logits[0, -len(answer) - 1 : -1].float(), wanted, reduction="sum"
            )
            count += len(answer)
        return total / count

    return loss


def _check(models: Sequence[Weights]) -> None:
    """Raise UserError where there is no model, or their names or shapes differ."""
    if not models:
        raise UserError("there is no model to merge")
    first = {name: weight.shape for name, weight in models[0].items()}
    if any({name: weight.shape for name, weight in m.items()} != first for m in models[1:]):
        raise UserError("these checkpoints are of different models: names or shapes differ")
