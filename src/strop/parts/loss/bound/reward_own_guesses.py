"""Let the policy guess the next token of a given answer, and reinforce what it guesses right."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.draws import uniforms
from strop.method.part import require
from strop.support.errors import UserError


@dataclass(frozen=True)
class RewardOwnGuesses:
    """At every token of an answer the policy's own guesses are rewarded where they hit the token.

        a_1..a_n ~ pi' = softmax(logq / temperature), detached;   r(a) = 1 if a = id_t else wrong
        objective_t = mean_k r(a_k) logq(a_k)
        num_guesses 0: its expectation, sum_a pi'(a) r(a) logq(a)

    It is one step of policy gradient at each place of the answer, whose tokens are the state.

    Reads: logq_TV [T, V] float, id_T [T] int, guess_seed_T [T] int where num_guesses is above 0.
    Writes: objective_T [T] float.
    Source: arXiv 2509.26313.
    Differs from the source: wrong and temperature are known only as slightly below 0 and slightly
    above 1; the expectation is ours.
    Nearest part: shape_by_likelihood with shape power, gamma 1 and advantage 1: its gradient, times
    1 - wrong, is the expectation's at temperature 1. follow_log_likelihood weighs every token 1.
    Edges: a guess that is impossible is never made; guesses above 0 without seeds -> UserError.
    """

    scope: ClassVar[str] = "token"
    # Guesses at each token; 0: their expectation. Default: paper (256).
    num_guesses: int = 256
    # Reward of a wrong guess. Default: ours (paper: slightly below 0, its number was not found).
    wrong: float = -0.1
    # Temperature of the guesses. Default: ours (paper: slightly above 1).
    temperature: float = 1.1

    def __post_init__(self) -> None:
        require(self, "num_guesses", low=0)
        require(self, "wrong", high=1.0)
        require(self, "temperature", low=1e-3)

    def __call__(self, logq_TV: Tensor, id_T: Tensor, guess_seed_T: Tensor | None = None) -> Tensor:
        guess_TV = torch.softmax(logq_TV.detach() / self.temperature, dim=-1)
        if self.num_guesses == 0:
            return self._expected(logq_TV, guess_TV, id_T)
        if guess_seed_T is None:
            raise UserError(
                "reward_own_guesses draws guesses from guess_seed_T, which nothing has written: "
                "add the probe seed_guesses, or set loss.num_guesses=0"
            )
        guess_TN = drawn(guess_TV, guess_seed_T, self.num_guesses)
        right_TN = guess_TN == id_T[:, None]
        reward_TN = torch.where(right_TN, 1.0, self.wrong).to(logq_TV.dtype)
        gain_TN = reward_TN * logq_TV.gather(1, guess_TN)
        return gain_TN.sum(-1) / self.num_guesses

    def _expected(self, logq_TV: Tensor, guess_TV: Tensor, id_T: Tensor) -> Tensor:
        token_TV = torch.arange(logq_TV.shape[1], device=id_T.device) == id_T[:, None]
        weight_TV = torch.where(token_TV, guess_TV, guess_TV * self.wrong)
        safe_TV = torch.where(guess_TV > 0, logq_TV, 0)
        return (weight_TV * safe_TV).sum(-1)


def drawn(weight_TV: Tensor, seed_T: Tensor, num: int) -> Tensor:
    """`num` draws [T, num] from every row of weights [T, V], which need not add up to 1."""
    sum_TV = weight_TV.cumsum(-1)
    whole_T1 = sum_TV[:, -1:]
    level_TN = uniforms(seed_T, num).mul_(whole_T1).to(sum_TV.dtype)
    # A level that is rounded up to the whole sum lies above all tokens: the last possible one's is
    # just below.
    level_TN = torch.minimum(level_TN, torch.nextafter(whole_T1, torch.zeros_like(whole_T1)))
    return torch.searchsorted(sum_TV, level_TN, right=True)
