"""Hold some rollouts out of training, and measure how well the critics predict them."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Curated, Result, require
from strop.method.services import Scoring

NEAR = 1e-9  # the tolerance for whole numbers


@dataclass(frozen=True)
class HoldOutRollouts:
    """Episodes that nothing learns from show whether critics generalise or have memorised.

        of n scored rollouts in their order the last n - int((1 - share) n) leave the step
        by_prompt: all rollouts of a prompt u leave if floor((u + 1) share) > floor(u share)
        of these, for each head: mean cross-entropy of sigmoid(value) with [outcome > 0] before the
            step's updates, at the first policy token of each turn, or of each rollout (task_heads)

    Metrics: held_out/rollouts, held_out/loss/{head} (nats).

    Reads: batch, scored_B [B] bool; scoring.   Writes: rows to keep.
    Source: arXiv 2406.11896, code only: DigiRL-agent/digirl (validation trajectories).
    Differs from the source: the loss is of this step's rollouts, before the critics learn; there it
    is of a draw from all rollouts held out so far, afterwards. Its offline phase holds out the
    file's last episodes; by_prompt holds out every fifth prompt.
    Nearest part: drop_rollouts_of_stage, which drops by the phase they come from.
    Edges: one scored rollout -> it stays unless by_prompt; nothing held out, or no critic -> no
    loss is logged.
    """

    facts: ClassVar[frozenset[str]] = frozenset(
        {"scores_again", "order_matters", "order_breaks_ties"}
    )
    # Share of the rollouts that is held out; 0: none. Default: released code (0.2).
    share: float = 0.2
    # Whether the same prompts are held out in every step, every fifth at a share of 0.2. Default:
    # ours (no, the last rollouts of each step).
    by_prompt: bool = False
    # Heads of the critic that value turns. Default: released code (the step critic).
    heads: tuple[str, ...] = ("value_T",)
    # Those that value whole rollouts. Default: released code (the instruction critic).
    task_heads: tuple[str, ...] = ("value_task_T",)

    def __post_init__(self) -> None:
        require(self, "share", low=0.0, high=1.0)

    def __call__(self, batch: Batch, scored_B: Tensor, scoring: Scoring) -> Result:
        held_B = scored_B & self._last(batch, scored_B)
        metrics = {"held_out/rollouts": float(held_B.sum())}
        if (*self.heads, *self.task_heads) and held_B.any() and "critic" in scoring.policies:
            metrics |= self._losses(batch.keep(held_B), scoring)
        return Result(Curated(~held_B, "held_out"), metrics=metrics)

    def _last(self, batch: Batch, scored_B: Tensor) -> Tensor:
        """The rollouts [B] bool that are held out if they are scored."""
        if self.by_prompt:
            uid_B = batch["uid_P"][batch["group_B"]].double()
            return ((uid_B + 1) * self.share + NEAR).floor() > (uid_B * self.share + NEAR).floor()
        trained = int((1 - self.share) * int(scored_B.sum()) + NEAR)
        return scored_B.cumsum(0) > max(trained, 1)

    def _losses(self, held: Batch, scoring: Scoring) -> dict[str, float]:
        """The critics' cross-entropies on these rollouts."""
        heads = (*self.heads, *self.task_heads)
        found = scoring.score(held, "critic", heads)
        row_N = held["mask_T"].nonzero().squeeze(1)
        rollout_N, turn_N = held["rollout_T"][row_N], held["turn_T"][row_N]
        num_B, num_K = held.size("B"), held.size("K")
        losses = {}
        for head in heads:
            key_N, num = (turn_N, num_K) if head in self.heads else (rollout_N, num_B)
            begins_N = segments.first(key_N, num)[segments.count(key_N, num) > 0]
            value_N = found[head].to(row_N.device)[row_N[begins_N]].double()
            wanted_N = (held["outcome_B"] > 0)[rollout_N[begins_N]].double()
            loss = binary_cross_entropy_with_logits(value_N, wanted_N)
            losses[f"held_out/loss/{head[:-2]}"] = float(loss)
        return losses
