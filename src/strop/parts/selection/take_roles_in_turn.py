"""Let the turns of one role learn at a time."""

from dataclasses import dataclass

from torch import Tensor

from strop.batch import segments
from strop.method.part import Selected, require
from strop.support.errors import UserError


@dataclass(frozen=True)
class TakeRolesInTurn:
    """Agents learn one after another: the others' turns are present, but not learnt from.

        a = floor((step - 1) / interval) mod roles
        token t stays in gradient and denominator if the role of its turn is a

    Reads: role_K [K] int, turn_T [T] int, mask_T [T] bool, step int.
    Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2504.16129; code jwliao-ai/MARFT (agent_iteration_interval).
    Differs from the source: steps of training are counted, there the environments' steps.
    Nearest part: keep_rollouts_of_stage, which decides by the rollout and for the whole run.
    Edges: one role -> keeps everything; the current role has no turn -> empty masks; a turn of a
    role beyond `roles` -> UserError.
    """

    # Steps before the next role's turn. Default: released code (launch script).
    interval: int = 1000
    # Number of roles, from 0 on: a step may lack some of them. Default: ours (the fewest).
    roles: int = 2

    def __post_init__(self) -> None:
        require(self, "interval", "roles", low=1)

    def __call__(self, role_K: Tensor, turn_T: Tensor, mask_T: Tensor, step: Tensor) -> Selected:
        if (seen := segments.count_of(role_K)) > self.roles:
            raise UserError(
                f"take_roles_in_turn: a turn has role {seen - 1}, and {self.roles} roles learn in "
                f"turn: give take_roles_in_turn roles={seen}"
            )
        role = (int(step) - 1) // self.interval % self.roles
        keep_T = mask_T & (role_K == role)[turn_T]
        return Selected(keep_T, keep_T, "other_role")
