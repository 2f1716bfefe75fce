"""Spread tokens evenly over the experts of a mixture."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.method.part import Result


@dataclass(frozen=True)
class BalanceExperts:
    """Routers are pushed away from experts that get more tokens than others.

        objective_t = -balance_t,  balance_t = mean_l E sum_e f_le p_tle
        f_le: share of the step's tokens that layer l sent to expert e (it sums to k over e)
        p_tle: softmax of layer l's router at the token before t, which predicts it

    Averaged over tokens it is Switch's auxiliary loss: k where all experts get equally many tokens,
    more where those that get many are also likely. f is of the step's first pass (or the engine's)
    and held constant, so the loss does not depend on how a step is split. Its coefficient is the
    model's own `router_aux_loss_coef` where one is to be kept.

    Reads: router_balance_T [T] float.   Writes: objective_T [T] float.
    Source: arXiv 2101.03961, eq. 4 to 6; arXiv 2501.11873 (f over all of a step, not a pass).
    Differs from the source: tokens are those that the term averages over, the policy's own. Layers
    are averaged, as Megatron does; transformers adds up f and p over layers before the product.
    Nearest part: reward_entropy, which does to tokens what this does to experts.
    Edges: one expert a layer -> a constant; a model without routers is refused.
    """

    scope: ClassVar[str] = "token"

    def __call__(self, router_balance_T: Tensor) -> Result:
        return Result(-router_balance_T, metrics={"router/balance": router_balance_T.detach()})
