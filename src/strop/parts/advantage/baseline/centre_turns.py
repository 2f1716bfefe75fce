"""Compare each turn with the turns that are like it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of

KEYS = ("index", "state", "group", "last", "role", "player", "batch")


@dataclass(frozen=True)
class CentreTurns:
    """A turn learns from how much better it went than its peers: same place, state, role, ...

        advantage_k = (score_k - mean_{j like k} score_j) / (std_{j like k} score_j + eps)

    Peers by `key`: "index" turns of the prompt's group at the same position, "state" those in the
    same state, "group" all turns of the group, "last" the group's last turns of rollouts among
    themselves and the other turns among themselves, "role" or "player" all turns of the step with
    that role or player (one player where no column names them), "batch" all turns of the step.
    With leave_one_out the mean is over the others.

    Reads: values_K [K] float (return_K unless renamed), rollout_K, index_K, group_K [K] int,
    scored_B [B] bool; state_K or role_K [K], player_B [B] int where the key needs it.
    Writes: advantage_K [K] float.
    Source: arXiv 2505.10978, eq. 7 (key "state"); arXiv 2602.05885 (leave_one_out, "index").
    Differs from the source: no.
    Nearest part: subtract_group_mean, which does the same over rollouts.
    Edges: a turn without peers -> by `singleton`; equal peers -> 0; turns of unscored rollouts ->
    0 and outside the statistics.
    """

    writes: ClassVar[tuple[str, ...]] = ("advantage_K",)
    columns: ClassVar[dict[str, str]] = {"values_K": "return_K"}
    # What makes turns peers. Default: ours ("index").
    key: str = "index"
    # Whether a turn is left out of its own mean. Default: ours (no).
    leave_one_out: bool = False
    # "none", "unbiased" (n - 1) or "biased" (n). Default: ours ("none").
    scale: str = "none"
    # Added to the deviation; in reward units. Default: released code (verl).
    eps: float = 1e-6
    # What a turn without peers gets: "raw" (its score) or "zero". Default: ours ("zero").
    singleton: str = "zero"

    def __post_init__(self) -> None:
        require_one_of(self, "key", KEYS)
        require_one_of(self, "scale", ("none", "unbiased", "biased"))
        require_one_of(self, "singleton", ("raw", "zero"))
        require(self, "eps", low=0.0)

    @property
    def any_of(self) -> tuple[tuple[str, ...], ...]:
        """The column that identifies peers, where not every batch of turns has it."""
        return {"state": (("state_K",),), "role": (("role_K",),)}.get(self.key, ())

    def __call__(
        self,
        values_K: Tensor,
        rollout_K: Tensor,
        index_K: Tensor,
        group_K: Tensor,
        scored_B: Tensor,
        state_K: Tensor | None = None,
        role_K: Tensor | None = None,
        player_B: Tensor | None = None,
    ) -> Result:
        counts_K = scored_B[rollout_K]
        all_K = torch.zeros_like(group_K)
        player_K = all_K if player_B is None else player_B[rollout_K]
        last_K = segments.ends(rollout_K).long()
        chosen = {
            "index": (group_K, index_K), "state": (group_K, state_K), "group": (group_K,),
            "last": (group_K, last_K), "role": (role_K,), "player": (player_K,), "batch": (all_K,),
        }[self.key]  # fmt: skip
        missing = [column for column in chosen if column is None]
        assert not missing, f"centre_turns by {self.key} needs {self.key}_K"
        key_K, num = segments.key_of(*(column for column in chosen if column is not None))
        size_K = segments.count(key_K, num, counts_K)[key_K]
        alone_K = size_K == 1
        if self.leave_one_out:
            z_K = values_K - segments.leave_one_out_mean(values_K, key_K, num, counts_K)
        else:
            z_K = segments.centred(values_K, key_K, num, counts_K)
        z_K = torch.where(alone_K, values_K if self.singleton == "raw" else 0, z_K)
        if self.scale != "none":
            ddof = 1 if self.scale == "unbiased" else 0
            std_N = segments.std(values_K, key_K, num, counts_K, ddof)
            z_K = segments.divided(z_K, torch.where(alone_K, 1.0, std_N[key_K]) + self.eps)
        metrics = {
            f"turns/peers_{self.key}": segments.overall(size_K - 1, counts_K),
            f"turns/frac_alone_{self.key}": segments.overall(alone_K, counts_K),
        }
        return Result(torch.where(counts_K, z_K, 0), metrics=metrics)
