"""Decides whether a prefix that several contexts share is computed once or once per context."""

from typing import Any, Literal

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.training.learner.forest import Rows, begun_alike, plant, rows_of
from strop.training.learner.forest_attention import Layout, compared, lay_out, states_of
from strop.training.learner.models import text_config, trunk_of

When = Literal["auto", "on", "off"]
LEAST_SAVED = 0.2  # share of the work, for "auto"
KINDS = {"full_attention", "sliding_attention"}
# What models raise for arguments that they do not take.
REFUSED = (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError)


def worthwhile(batch: Batch, when: When, width: int) -> Rows | None:
    """Returns the batch's contexts if their shared prefixes are to be computed once, else None.

    width: of the model's hidden states. A token costs its layers about 24 * width^2 operations,
    and attention 4 * width for each token that is compared with it: there a forest, whose blocks
    have masks, does more than causal attention needs.
    """
    if when == "off" or batch.size("T") == 0:
        return None
    context_T, num = batch.contexts()
    rows = rows_of(batch["id_T"], context_T, num)
    if when == "on":
        return rows
    size_C = segments.count(context_T, num).double()
    plain = 6 * width * float(size_C.sum()) + float((size_C * size_C).sum()) / 2
    shared = 6 * width * rows.num_nodes + compared(rows)
    return rows if shared <= (1 - LEAST_SAVED) * plain else None


def layout(micro: Batch, when: When, width: int, token_budget: int) -> Layout | None:
    """The forest of a micro-batch, laid out for attention; None where each context is its own.

    A micro-batch that `split` has cut from such a batch, and which is too large without sharing,
    is shared whatever it saves.
    """
    if when == "auto" and len(micro.split(token_budget)) > 1:
        when = "on"
    rows = worthwhile(micro, when, width)
    return None if rows is None else lay_out(plant(rows))


def split(batch: Batch, rows: Rows, token_budget: int) -> list[Tensor]:
    """Rollout indices of micro-batches with at most `token_budget` nodes, like ones together.

    A larger rollout gets its own micro-batch.
    """
    place_C = torch.empty_like(rows.order_C)
    place_C[rows.order_C] = torch.arange(rows.order_C.shape[0], device=place_C.device)
    context_T, num = batch.contexts()
    rollout_C = batch["rollout_T"][segments.first(context_T, num)]
    # Rollouts in the order of their first contexts, each with all of its own.
    first_B = segments.first(rollout_C, batch.size("B"))
    order_B = torch.argsort(place_C[first_B])
    own_C = segments.rows_of(rollout_C, order_B, batch.size("B"))
    opens_C = first_B[rollout_C[own_C]] == own_C
    alike_C = begun_alike(rows.id_CL[place_C[own_C]])
    added_C = rows.size_C[place_C[own_C]] - alike_C
    turn_C = opens_C.cumsum(0) - 1
    added = segments.total(added_C, turn_C, batch.size("B")).tolist()
    saved = alike_C[opens_C].tolist()
    cuts, start, held = [], 0, 0
    for place, more in enumerate(added):
        held += more
        if place > start and held > token_budget:
            cuts.append(place - start)
            start, held = place, more + saved[place]
    return list(torch.split(order_B, [*cuts, len(added) - start]))


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
    laid_out = lay_out(plant(rows_of(ids_CL.flatten(), context_T, num)))
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
