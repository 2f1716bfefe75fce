"""Credit a turn with the rewards of the turns that follow it."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch import segments
from strop.method.part import present, require, require_one_of


@dataclass(frozen=True)
class DiscountTurnRewards:
    """A turn's score is what its rollout earned from there on, later rewards counting less.

        return_k = sum_{j >= k} gamma^(j - k) value_j - invalid_penalty [action k not understood]

    With `whole` every turn's score is the sum over all turns of its rollout, minus its penalty.
    `stop` ends the sum "after" the first turn whose action was not the wanted one, or "before" it:
    such a turn then has its own value alone.

    Reads: values_K [K] float (reward_K unless renamed), rollout_K [K] int, num_rollouts int;
    valid_K [K] bool where invalid_penalty is not 0; match_K [K] bool where `stop` is not "never".
    Writes: return_K [K] float.
    Source: arXiv 2505.10978, eq. 6 (the discounted return of a step), penalty as in its code; arXiv
    2509.11543 (stop).
    Differs from the source: no.
    Nearest part: discount_from_end, which discounts one outcome over tokens.
    Edges: the penalty is taken after discounting, so it stays with its turn.
    """

    writes: ClassVar[tuple[str, ...]] = ("return_K",)
    columns: ClassVar[dict[str, str]] = {"values_K": "reward_K"}
    # Discount of a turn. Default: ours (1: none).
    gamma: float = 1.0
    # Whether every turn gets its rollout's whole sum. Default: ours (no).
    whole: bool = False
    # What a turn whose action was not understood loses. Default: ours (nothing).
    invalid_penalty: float = 0.0
    # "never", "after" or "before" an action that was not the wanted one. Default: ours (never).
    stop: str = "never"

    def __post_init__(self) -> None:
        require(self, "gamma", low=0.0, high=1.0)
        require(self, "invalid_penalty", low=0.0)
        require_one_of(self, "stop", ("never", "after", "before"))

    @property
    def any_of(self) -> tuple[tuple[str, ...], ...]:
        """Understood actions where others are penalised; wanted ones where others end a sum."""
        stops = not self.whole and self.stop != "never"
        needed = {"valid_K": self.invalid_penalty != 0, "match_K": stops}
        return tuple((name,) for name, is_read in needed.items() if is_read)

    def __call__(
        self,
        values_K: Tensor,
        rollout_K: Tensor,
        num_rollouts: int,
        valid_K: Tensor | None = None,
        match_K: Tensor | None = None,
    ) -> Tensor:
        if self.whole:
            return_K = segments.total(values_K, rollout_K, num_rollouts)[rollout_K]
        else:
            key_K = self._pieces(rollout_K, match_K)
            return_K = segments.reward_to_go(values_K, key_K, self.gamma)
        if self.invalid_penalty == 0:
            return return_K
        return return_K - self.invalid_penalty * (~present(valid_K).bool()).to(return_K.dtype)

    def _pieces(self, rollout_K: Tensor, match_K: Tensor | None) -> Tensor:
        """A key [K] of the turns whose values are summed together."""
        if self.stop == "never":
            return rollout_K
        missed_K = (~present(match_K).bool()).long()
        ended_K = missed_K.cumsum(0) - missed_K  # misses before the turn
        if self.stop == "before":
            ended_K = ended_K + missed_K.cumsum(0)
        return segments.key_of(rollout_K, ended_K)[0]
