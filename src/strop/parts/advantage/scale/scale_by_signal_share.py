"""Make up for the rollouts of a step that teach nothing."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.method.part import Result, require, require_one_of


@dataclass(frozen=True)
class ScaleBySignalShare:
    """The fewer rollouts carry a signal, the harder each of them pushes.

        advantage_i <- advantage_i * B / max(rollouts with a signal, 1) / f_norm

    B is the number of scored rollouts of the step. A rollout has a signal when its reward is not 0
    ("code") or its advantage is not 0 ("paper"). The metric `advantage/signal_factor` is B / ....

    Reads: advantage_B [B] float, reward_B [B] float, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2504.02546 (the gradient's bias from groups of one outcome); code
    verl-project/verl core_algos.py.
    Differs from the source: no; the two forms are `source_form`.
    Nearest part: divide_by_group_std, whose factor differs by group.
    Edges: no signal at all -> times B; unscored rollouts -> 0 and in neither count.
    """

    # Constant to divide by. Default: released code (verl).
    f_norm: float = 1.0
    # What counts as a signal: "code" or "paper". Default: released code (verl). With rewards of
    # 0 and 1 the code's factor is 1 / accuracy, with -1 and 1 it is always 1.
    source_form: str = "code"

    def __post_init__(self) -> None:
        require(self, "f_norm", low=1e-12)
        require_one_of(self, "source_form", ("code", "paper"))

    def __call__(self, advantage_B: Tensor, reward_B: Tensor, scored_B: Tensor) -> Result:
        signal_B = reward_B if self.source_form == "code" else advantage_B
        num_signal = int((scored_B & (signal_B != 0)).sum())
        factor = int(scored_B.sum()) / max(num_signal, 1)
        scaled_B = torch.where(scored_B, advantage_B * factor / self.f_norm, 0)
        return Result(scaled_B, metrics={"advantage/signal_factor": factor})
