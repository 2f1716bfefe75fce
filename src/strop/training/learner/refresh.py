"""Stage 5, refreshing: computes a column just before its first reader, on the rows that remain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from strop.batch.batch import Batch
from strop.batch.columns import OF_POLICY, is_value, old_value, slow_value
from strop.support.errors import UserError

if TYPE_CHECKING:  # which import transformers; `strop recipes` has no use for it
    from strop.training.learner.critic import Critic
    from strop.training.learner.step_models import StepModels


def refresh(batch: Batch, names: Iterable[str], models: StepModels) -> Batch:
    """`batch` with the columns `names` computed under the weights of policy, reference or critic.

    Raises UserError for the reference's columns when the run keeps no reference.
    """
    wanted = set(names)
    if values := {name for name in wanted if is_value(name)}:
        batch = _with_values(batch, values, models.critic)
        wanted -= values
    if unknown := sorted(wanted - OF_POLICY.keys() - {"logp_ref_T"}):
        raise UserError(f"{', '.join(unknown)} cannot be recomputed during a step")
    ours = {name: OF_POLICY[name] for name in sorted(wanted) if name in OF_POLICY}
    if ours:
        found = models.columns("current", batch, sorted(set(ours.values())))
        batch = batch.set(**{name: found[current] for name, current in ours.items()})
    if "logp_ref_T" in wanted:
        if models.reference is None:
            raise UserError("a part reads logp_ref_T, but the run keeps no reference policy")
        batch = batch.set(logp_ref_T=models.columns("ref", batch, ("logp_T",))["logp_T"])
    return batch


def _with_values(batch: Batch, names: set[str], critic: Critic | None) -> Batch:
    """`batch` with value columns; a head's current values are also its old ones, if requested."""
    heads = critic.current if critic is not None else ()
    columns = {name: head for head in heads for name in (head, old_value(head)) if name in names}
    columns |= {name: name for name in map(slow_value, heads) if name in names}
    if missing := sorted(names - columns.keys()):
        raise UserError(f"no critic of this run computes {', '.join(missing)}")
    assert critic is not None
    found = critic.columns(batch, sorted(set(columns.values())))
    return batch.set(**{name: found[head] for name, head in columns.items()})


def freeze(model: torch.nn.Module) -> torch.nn.Module:
    """The model without gradients, for a reference policy."""
    return model.requires_grad_(False).eval()
