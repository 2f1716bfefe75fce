"""The models of a step, the temperature they are read at, and the columns that they refresh."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from strop.batch.batch import Batch
from strop.batch.columns import OF_POLICY, OF_REFERENCE, is_value, old_value, slow_value
from strop.support.errors import UserError
from strop.training.learner.critic import Critic
from strop.training.learner.policy import Policy
from strop.training.learner.reference_prompts import reprompted
from strop.training.learner.served_reference import ServedReference


@dataclass(frozen=True)
class StepModels:
    """The trained policy and, where something reads them, a reference and a critic.

    temperature: of the step's rollouts. All log-probabilities of the step are taken at it, and all
    further answers drawn: they are of the distribution that the rollouts come from.
    """

    policy: Policy
    temperature: float
    reference: Policy | None = None
    critic: Critic | None = None
    served: ServedReference | None = None  # a reference behind a server

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names that `columns` accepts."""
        others = {"ref": self.reference or self.served, "critic": self.critic}
        return ("current", *(name for name, model in others.items() if model is not None))

    def columns(self, model: str, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        """Columns [T] of the batch under "current" or "ref", or the values of "critic".

        Raises UserError for a model that the run does not have.
        """
        if model not in self.names:
            raise UserError(
                f"no policy {model!r} to score with; this run has {', '.join(self.names)}"
            )
        if model == "critic":
            assert self.critic is not None
            return self.critic.columns(batch, names)
        if model == "current":
            return self.policy.columns(batch, names, self.temperature)
        read, served = reprompted(batch), self.served
        if self.reference is not None:
            found = self.reference.columns(read, names, self.temperature)
        else:
            assert served is not None
            # A server's numbers may vary from call to call: all processes have those of one.
            found = self.policy.ranks.from_first(
                lambda: served.columns(read, names, self.temperature)
            )
            found = {name: value.to(read["id_T"].device) for name, value in found.items()}
        if read is batch:
            return found
        mask_T = batch["mask_T"]
        kept = {name: value[read["mask_T"]] for name, value in found.items()}
        return {name: spread(value_N, mask_T, len(mask_T)) for name, value_N in kept.items()}


def spread(value_N: Tensor, rows: Tensor, size: int) -> Tensor:
    """The values as a column of `size` rows, at `rows` (a mask, or indices), 0 elsewhere."""
    full = value_N.new_zeros(size)
    full[rows] = value_N
    return full


def refresh(batch: Batch, names: Iterable[str], models: StepModels) -> Batch:
    """`batch` with the columns `names` computed under the weights of policy, reference or critic.

    Raises UserError for the reference's columns when the run keeps no reference.
    """
    wanted = set(names)
    if values := {name for name in wanted if is_value(name)}:
        batch = _with_values(batch, values, models.critic)
        wanted -= values
    if unknown := sorted(wanted - OF_POLICY.keys() - OF_REFERENCE):
        raise UserError(f"{', '.join(unknown)} cannot be recomputed during a step")
    ours = {name: OF_POLICY[name] for name in sorted(wanted) if name in OF_POLICY}
    if ours:
        found = models.columns("current", batch, sorted(set(ours.values())))
        batch = batch.set(**{name: found[current] for name, current in ours.items()})
    of_reference = sorted(wanted & OF_REFERENCE)
    if of_reference and "ref" not in models.names:
        raise UserError(f"a part reads {of_reference[0]}, but the run keeps no reference policy")
    if "logp_ref_T" in wanted:
        batch = batch.set(logp_ref_T=models.columns("ref", batch, ("logp_T",))["logp_T"])
    if "kl_ref_old_T" in wanted:
        assert models.reference is not None
        kl_T = models.policy.divergence(batch, models.reference, models.temperature)
        batch = batch.set(kl_ref_old_T=kl_T)
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
