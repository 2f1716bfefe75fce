"""Measures whether the terms of a policy's loss have conflicting gradients, per block of layers.

A term's gradient g_m is that of an update, with the term's coefficient. Each half of the update's
prompts gives its own part of it: the part of a gradient in which the halves disagree is noise.
Beside every cosine of two terms on the same answers stands the cosine across the halves, whose
noise is not shared, and as the floor the cosine of each term with itself across them. The step
stays as it is: its gradients are set aside meanwhile, and those measured here are discarded.

Source: the question is that of arXiv 2411.08937, which gives two contradicting losses a head each.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, combinations_with_replacement

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.chains import RngOf
from strop.method.part import Term
from strop.training.learner import kernel
from strop.training.learner.kernel import Tally
from strop.training.learner.policy import Policy
from strop.training.learner.step_models import StepModels
from strop.training.learner.token_trace import Spectator
from strop.training.learner.update import Learner
from strop.training.parallel import shards

BLOCKS = ("head", "lower", "upper")  # the first has embeddings and all weights outside the layers


@dataclass
class TermConflict(Spectator):
    """Observes the updates of one step, and measures the terms of those that have several."""

    models: StepModels | None = None
    found: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def begin(self, batch: Batch, models: StepModels) -> None:
        """Keep the models that are updated."""
        self.models = models

    def updated(self, terms: Sequence[Term], prepared: Batch, rng_of: RngOf, number: int) -> None:
        """Measure the terms on the rows of an update whose own gradient is complete."""
        if len(terms) < 2 or prepared.size("B") == 0:
            return
        assert self.models is not None
        policy, halves = self.models.policy, halves_of(prepared)
        weights = list(policy.masters().values())
        aside, gradients = [weight.grad for weight in weights], []
        learner = Learner(self.models, 0.0, rng_of)
        with torch.random.fork_rng():
            for term in terms:
                for half_B in halves:
                    for weight in weights:
                        weight.grad = None
                    rows = restricted(term, prepared, half_B)
                    if rows.size("B"):
                        learner.push(policy, [term], rows, number, Tally())
                    gradients.append([weight.grad for weight in weights])
        for weight, gradient in zip(weights, aside, strict=True):
            weight.grad = gradient
        products = products_of(gradients, blocks_of(policy))
        products = policy.ranks.total({"products": products})["products"]
        for name, value in conflicts([term.name for term in terms], products, len(halves)).items():
            self.found[name].append(value)

    def metrics(self) -> dict[str, float]:
        """Means over the updates that were measured."""
        return {name: sum(values) / len(values) for name, values in self.found.items()}


def halves_of(batch: Batch) -> list[Tensor]:
    """The rollouts [B] of every second group and those of the others; a single group is not split.

    Groups stay whole: advantages of a group sum to 0, so its halves would contradict each other.
    """
    _, order_B = torch.unique(batch["group_B"], return_inverse=True)
    halves = [order_B % 2 == 0, order_B % 2 == 1]
    return halves if bool(halves[1].any()) else halves[:1]


def restricted(term: Term, prepared: Batch, half_B: Tensor) -> Batch:
    """The prepared rows with a term's shares in the rollouts `half_B`, and shares of 0 elsewhere.

    The other rollouts are left out, unless the term's objective must see the whole update.
    """
    share_T = torch.where(half_B[prepared["rollout_T"]], prepared[f"{term.name}:share_T"], 0)
    prepared = prepared.set(**{f"{term.name}:share_T": share_T})
    if kernel.scope_of([term]) == "update":
        return prepared
    learns_T = prepared[f"{term.name}:rows_T"] & (share_T != 0)
    learning_B = segments.count(prepared["rollout_T"], prepared.size("B"), learns_T) > 0
    return prepared.keep(learning_B)


def blocks_of(policy: Policy) -> list[str]:
    """The block of each of the policy's trained weights, by the index of its layer."""
    paths = [name.split(".") for name in policy.masters()]
    layers = [next((int(each) for each in path if each.isdigit()), None) for path in paths]
    num_layers = 1 + max((layer for layer in layers if layer is not None), default=0)
    return [
        "head" if layer is None else "lower" if 2 * layer < num_layers else "upper"
        for layer in layers
    ]


def products_of(gradients: Sequence[Sequence[Tensor | None]], blocks: Sequence[str]) -> Tensor:
    """Inner products [block, N, N] of N gradients, over the parts of them in this process."""
    device = next((g.device for each in gradients for g in each if g is not None), None)
    shape = (len(BLOCKS), len(gradients), len(gradients))
    found = torch.zeros(shape, dtype=torch.float64, device=device)
    for one, other in combinations_with_replacement(range(len(gradients)), 2):
        for a, b, block in zip(gradients[one], gradients[other], blocks, strict=True):
            if a is not None and b is not None:
                product = shards.local(a).float() * shards.local(b).float()
                found[BLOCKS.index(block), one, other] += product.sum(dtype=torch.float64)
    upper = torch.triu(found, 1)
    return found + upper.transpose(1, 2)


def conflicts(names: Sequence[str], products: Tensor, num_halves: int) -> dict[str, float]:
    """The metrics of terms whose gradients on each half have these products [block, N, N], the
    halves of a term side by side. A cosine with a gradient of 0 is left out.
    """
    num = len(names)
    products = torch.cat([products, products.sum(0, keepdim=True)])
    halves = products.cpu().reshape(len(BLOCKS) + 1, num, num_halves, num, num_halves)
    found: dict[str, float] = {}
    for block, each in zip((*BLOCKS, "all"), halves, strict=True):
        sums = each.sum((1, 3))
        for m, n in combinations(range(num), 2):
            pair = f"{names[m]}_{names[n]}/{block}"
            _put(found, f"conflict/{pair}", sums[m, n], (sums[m, m] * sums[n, n]).sqrt())
            if num_halves == 2:
                _put(found, f"conflict/across/{pair}", *_across(each, m, n))
        for m in range(num if num_halves == 2 else 0):
            _put(found, f"conflict/floor/{names[m]}/{block}", *_across(each, m, m))
    norms = sums.diagonal().sqrt()  # those of the last block, "all"
    for name, norm in zip(names, norms, strict=True):
        _put(found, f"conflict/share/{name}", norm, norms.sum())
    _put(found, "conflict/cancelled", norms.sum() - sums.sum().clamp(min=0).sqrt(), norms.sum())
    return found


def _across(each: Tensor, m: int, n: int) -> tuple[Tensor, Tensor]:
    """The inner products of term m on one half with term n on the other, summed, and the products
    of their norms.

    each: [term, half, term, half].
    """
    norm = torch.stack([each[m, h, m, h] for h in (0, 1)]).sqrt()
    other = torch.stack([each[n, h, n, h] for h in (0, 1)]).sqrt()
    return each[m, 0, n, 1] + each[m, 1, n, 0], norm[0] * other[1] + norm[1] * other[0]


def _put(found: dict[str, float], name: str, value: Tensor, size: Tensor) -> None:
    if size > 0:
        found[name] = float(value / size)
