"""Whether a prefix that several contexts begin with is computed once, or once a context."""

from typing import Any, Literal

import torch
from torch import Tensor

from strop import segments
from strop.batch import Batch
from strop.training.forest import Forest, plant
from strop.training.forest_attention import Layout, compared, lay_out, states_of
from strop.training.models import text_config, trunk_of

When = Literal["auto", "on", "off"]
LEAST_SAVED = 0.2  # share of the work, for "auto"
KINDS = {"full_attention", "sliding_attention"}
# What models raise for arguments that they do not take.
REFUSED = (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError)


def worthwhile(batch: Batch, when: When, width: int) -> Forest | None:
    """The forest of the batch's contexts where it is to be computed, None where each is its own.

    width: of the model's hidden states. A token costs its layers about 24 * width^2 operations,
    and attention 4 * width for each token that is compared with it: there a forest, whose blocks
    have masks, does more than causal attention needs.
    """
    if when == "off" or batch.size("T") == 0:
        return None
    context_T, num = batch.contexts()
    forest = plant(batch["id_T"], context_T, num)
    if when == "on":
        return forest
    size_C = segments.count(context_T, num).double()
    plain = 6 * width * float(size_C.sum()) + float((size_C * size_C).sum()) / 2
    shared = 6 * width * forest.size + compared(forest)
    return forest if shared <= (1 - LEAST_SAVED) * plain else None


def layout(micro: Batch, when: When, width: int, token_budget: int) -> Layout | None:
    """The forest of a micro-batch, laid out for attention; None where each context is its own.

    One that `split` has cut from a worthwhile batch, and which is too large without sharing, is
    shared whatever it saves.
    """
    if when == "auto" and len(micro.split(token_budget)) > 1:
        when = "on"
    forest = worthwhile(micro, when, width)
    return None if forest is None else lay_out(forest)


def split(batch: Batch, forest: Forest, token_budget: int) -> list[Tensor]:
    """Rollout indices of micro-batches with at most `token_budget` nodes, like ones together.

    A rollout of more gets a micro-batch of its own.
    """
    context_T, num = batch.contexts()
    size_C = segments.count(context_T, num)
    first_C = segments.first(context_T, num)
    rollout_C = batch["rollout_T"][first_C]
    contexts = torch.arange(num, device=size_C.device)
    last_C = forest.node_CL[contexts, size_C - 1]
    # In the order of the nodes where its first context ends.
    begun_B = segments.first(rollout_C, batch.size("B"))
    order_B = torch.argsort(last_C[begun_B], stable=True)
    row_C = segments.rows_of(rollout_C, order_B, batch.size("B"))
    shared_C = _in_common(forest, row_C, size_C)
    new_C = size_C[row_C] - shared_C
    opens_C = begun_B[rollout_C[row_C]] == row_C
    place_B = torch.empty_like(order_B)
    place_B[order_B] = torch.arange(order_B.shape[0], device=order_B.device)
    place_C = place_B[rollout_C[row_C]]
    added = segments.total(new_C, place_C, batch.size("B")).tolist()
    saved = segments.total(torch.where(opens_C, shared_C, 0), place_C, batch.size("B")).tolist()
    cuts, start, held = [], 0, 0
    for place, more in enumerate(added):
        held += more
        if place > start and held > token_budget:
            cuts.append(place - start)
            start, held = place, more + saved[place]
    return list(torch.split(order_B, [*cuts, len(added) - start]))


def _in_common(forest: Forest, row_C: Tensor, size_C: Tensor) -> Tensor:
    """Tokens [C] that each of the contexts `row_C` begins with like the one before it."""
    node_CL, size_C = forest.node_CL[row_C], size_C[row_C]
    position_L = torch.arange(node_CL.shape[1], device=node_CL.device)
    known_CL = position_L < torch.minimum(size_C[1:], size_C[:-1])[:, None]
    same = ((node_CL[1:] == node_CL[:-1]) & known_CL).sum(1)
    return torch.cat([same.new_zeros(1), same])


@torch.no_grad()
def why_not(model: Any) -> str:
    """Why the model cannot compute a prefix once for several contexts; empty where it can.

    A small forest is compared with plain forward passes.
    """
    config = text_config(model)
    if (attention := config._attn_implementation) != "sdpa":
        return f"its attention is {attention}, and only sdpa can be laid out so"
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - KINDS:
        return f"it has layers of {', '.join(sorted(kinds - KINDS))}"
    ids_CL, device = _trial(config), next(model.parameters()).device
    ids_CL = ids_CL.to(device)
    num, width = ids_CL.shape
    context_T = torch.repeat_interleave(torch.arange(num, device=device), width)
    laid_out = lay_out(plant(ids_CL.flatten(), context_T, num))
    plain = trunk_of(model)(input_ids=ids_CL, use_cache=False).last_hidden_state
    try:
        found = states_of(model, laid_out)
    except REFUSED as error:
        return f"its layers do not take a forest of prefixes ({str(error).splitlines()[0]})"
    if laid_out.windows != _windows(config):
        return "its layers do not say how far they look back"
    found, plain = found[laid_out.forest.node_CL].double(), plain.double()
    difference = float((found - plain).norm() / plain.norm())
    exact = model.dtype in (torch.float32, torch.float64)
    if not difference < (1e-4 if exact else 0.1):
        return f"its hidden states then differ by {difference:.1%}"
    return ""


def _trial(config: Any) -> Tensor:
    """Contexts of which four begin alike, two of them further, and one on its own; more than a
    block of the attention."""
    length = min(16, int(getattr(config, "max_position_embeddings", None) or 16))
    ids_CL = torch.arange(5 * length).view(5, length) * 7 + 3
    ids_CL[1:4, : length // 2] = ids_CL[0, : length // 2]
    ids_CL[2, : length - 2] = ids_CL[1, : length - 2]
    return ids_CL % config.vocab_size


def _windows(config: Any) -> set[int | None]:
    """How far layers look back, by the model's configuration; None: to the beginning."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ("sliding_attention",)
    return {window if kind == "sliding_attention" else None for kind in kinds}
