"""Record what the environment measured of each turn's program."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.batch.columns import Column
from strop.method.part import Result
from strop.method.services import Log
from strop.support.errors import UserError

MEASURES = ("correct", "speedup", "profiled", "decoy")


@dataclass(frozen=True)
class NoteTurnProfiles:
    """Measurements that an environment gives with an action become columns of its turn.

        correct_k, decoy_k = measure != 0;  speedup_k, profiled_k as measured (missing: NaN)
        key_k = a number that depends on the rollout's uid and the turn's index alone, for draws

    Reads: rollout_uid_B [B] int, rollout_K, index_K [K] int; log (measures of Observation).
    Writes: correct_K, decoy_K [K] bool, speedup_K, profiled_K [K] float, key_K [K] int.
    Source: arXiv 2602.05885 (what its kernel server reports after each turn).
    Differs from the source: no.
    Nearest part: note_profiles, whose measurements are of a whole rollout.
    Edges: a turn without measures ran no program: not correct, no speedup; no turn with any ->
    UserError.
    """

    writes: ClassVar[tuple[str, ...]] = (
        "correct_K", "speedup_K", "profiled_K", "decoy_K", "key_K",
    )  # fmt: skip
    declares: ClassVar[tuple[Column, ...]] = (
        Column("correct_K", "bool", "the turn's program is right", door=("turn_correct",),
               random="flag:0.3"),
        Column("speedup_K", "float", "how much faster it is than the reference",
               door=("turn_speedup",), random="uniform"),
        Column("profiled_K", "float", "share of the time in generated code",
               door=("turn_profiled",), random="uniform"),
        Column("decoy_K", "bool", "it does not use what it defines", door=("turn_decoy",),
               random="flag:0.3"),
        Column("key_K", "int", "the turn's own number, the same in every run",
               door=("turn_key",), random="key:1000000"),
    )  # fmt: skip

    def __call__(
        self, rollout_uid_B: Tensor, rollout_K: Tensor, index_K: Tensor, log: Log
    ) -> Result:
        logged = log.logged.get("turns", {})
        uids = rollout_uid_B.tolist()
        turns = zip(rollout_K.tolist(), index_K.tolist(), strict=True)
        measured = [self._of(logged, uids[row], index) for row, index in turns]
        if any(uid in logged for uid in uids) and not any(measured):
            raise UserError(
                "note_turn_profiles: the environment measures nothing. Give its observations "
                f"measures of {', '.join(MEASURES)}, as the environment kernel_timing does"
            )
        device = rollout_K.device
        found = {
            name: torch.tensor(
                [each.get(name, math.nan) for each in measured], dtype=torch.float32, device=device
            )
            for name in MEASURES
        }
        flags = {name: found[name].nan_to_num() != 0 for name in ("correct", "decoy")}
        # The bits of a uid that remain distinguish rollouts; an index is far below 2^20.
        key_K = (rollout_uid_B[rollout_K] << 20) + index_K
        numbers = (found["speedup"], found["profiled"])
        return Result((flags["correct"], *numbers, flags["decoy"], key_K))

    def _of(
        self, logged: Mapping[int, Sequence[Mapping[str, Any]]], uid: int, index: int
    ) -> dict[str, float]:
        measures: dict[str, float] = logged.get(uid, [{}] * (index + 1))[index].get("measures", {})
        return measures
