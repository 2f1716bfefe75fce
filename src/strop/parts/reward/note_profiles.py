"""Record what the reward function measured of each program."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch.columns import Column
from strop.method.part import Result, require
from strop.method.services import Grading, Log
from strop.parts.reward._measured import measured


@dataclass(frozen=True)
class NoteProfiles:
    """Measurements that a reward function logs become columns that later parts can use.

        correct_i = outcome_i >= success;  speedup_i, profiled_i, decoy_i as logged

    The measurements are columns that a reward function logs for its rollouts with `log_extra`, or
    the names of further reward functions (weight 0 keeps them out of the sum). A missing number
    (None) is NaN: the program did not run; a missing decoy flag is false.

    Reads: outcome_B [B] float, reward_BM [B, M] float, rollout_uid_B [B] int; grading (names),
    log.   Writes: correct_B [B] bool, speedup_B, profiled_B [B] float, decoy_B [B] bool.
    Source: arXiv 2602.05885 (what its kernel server reports).
    Differs from the source: no.
    Nearest part: score_with_verifiers, which writes scores only.
    Edges: nothing of that name -> UserError that lists the known names.
    """

    writes: ClassVar[tuple[str, ...]] = ("correct_B", "speedup_B", "profiled_B", "decoy_B")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("correct_B", "bool", "the program is right", random="flag:0.3"),
        Column("speedup_B", "float", "how much faster it is than the reference", random="uniform"),
        Column("profiled_B", "float", "share of the time in generated code", random="uniform"),
        Column("decoy_B", "bool", "it does not use what it defines", random="flag:0.3"),
    )
    # Name of the speedup over the reference program. Default: ours.
    speedup: str = "speedup"
    # Name of the share of the running time spent in generated code. Default: ours.
    profiled: str = "profiled"
    # Name of the flag of programs that do not use what they define. Default: ours.
    decoy: str = "decoy"
    # Outcome from which a program is correct. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0

    def __post_init__(self) -> None:
        require(self, "success")

    def __call__(
        self,
        outcome_B: Tensor,
        reward_BM: Tensor,
        rollout_uid_B: Tensor,
        grading: Grading,
        log: Log,
    ) -> Result:
        def column(name: str) -> Tensor:
            given = (reward_BM, rollout_uid_B, grading, log)
            return measured("note_profiles", name, *given).to(outcome_B.dtype)

        decoy_B = column(self.decoy).nan_to_num() != 0
        numbers = (column(self.speedup), column(self.profiled))
        return Result((outcome_B >= self.success, *numbers, decoy_B))
