"""Defines decision trees small enough to enumerate, softmax policies on them, and exact values.

An answer is a path: `depth` actions out of `branching`, or fewer in a ragged tree, where action 0
ends it. Every prompt has its own tree. The policy has a free logit for every action at every node,
so measurements on it do not depend on a network's architecture.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from strop.engines.base import Rule
from strop.support.errors import UserError

MOST_PATHS = 4096  # of one prompt


class Truth(NamedTuple):
    """Exact values of a policy on a tree, and their gradients by the logits theta [A, N].

    success: expected reward, mean over prompts; for a policy that learns from a teacher, minus its
    divergence from the teacher over whole answers, nats. entropy: of a token, nats, mean over the
    tokens that the policy writes. token_slope: gradient of the divergences at all its tokens, as if
    no token influenced later ones; None without a teacher.
    """

    success: float
    entropy: float
    success_slope: Tensor
    entropy_slope: Tensor
    token_slope: Tensor | None = None


@dataclass(frozen=True)
class Tree:
    """Answers and their rewards. rewards_PL [P, L]: for every prompt's paths, in order.

    Raises UserError for sizes out of range, and for rewards that do not fit the paths.
    """

    depth: int
    branching: int
    rewards_PL: Tensor
    ragged: bool = False

    def __post_init__(self) -> None:
        check_shape(self.depth, self.branching)
        if self.rewards_PL.dim() != 2 or self.rewards_PL.shape[1] != len(self.paths):
            raise UserError(
                f"the tree has {len(self.paths)} paths, the rewards have shape "
                f"{tuple(self.rewards_PL.shape)}: give one number a path for every prompt"
            )

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """All answers of a prompt, in the order of their actions."""
        return tuple(paths_of(self.depth, self.branching, self.ragged))

    @property
    def num_prompts(self) -> int:
        """Number of prompts."""
        return self.rewards_PL.shape[0]

    @property
    def num_nodes(self) -> int:
        """Inner nodes of a prompt's tree, including unreachable ones of a ragged tree."""
        return sum(self.branching**level for level in range(self.depth))

    @property
    def prompt_length(self) -> int:
        """Tokens of a prompt: its index, written with the actions as digits."""
        length = 1
        while self.branching**length < self.num_prompts:
            length += 1
        return length

    def prompt_ids(self, prompt: int) -> tuple[int, ...]:
        """The tokens of a prompt."""
        digits = []
        for _ in range(self.prompt_length):
            prompt, digit = divmod(prompt, self.branching)
            digits.append(digit)
        return tuple(reversed(digits))

    def node(self, prompt: int, prefix: tuple[int, ...]) -> int:
        """The node to which the actions of `prefix` lead."""
        inner = 0
        for action in prefix:
            inner = inner * self.branching + 1 + action
        return prompt * self.num_nodes + inner

    @cached_property
    def _steps(self) -> tuple[Tensor, Tensor, Tensor]:
        """Nodes and actions [L, D] of every path of prompt 0, and a mask of those that exist."""
        shape = (len(self.paths), self.depth)
        nodes, actions = (torch.zeros(shape, dtype=torch.int64) for _ in range(2))
        there = torch.zeros(shape, dtype=torch.bool)
        for row, path in enumerate(self.paths):
            for at, action in enumerate(path):
                nodes[row, at], actions[row, at] = self.node(0, path[:at]), action
                there[row, at] = True
        return nodes, actions, there

    def logp_PL(self, theta: Tensor) -> Tensor:
        """Log-probabilities [P, L] of the paths under the logits theta [A, P * N]."""
        nodes, actions, there = self._steps
        logp_AN = theta.log_softmax(0)
        first_P = torch.arange(self.num_prompts)[:, None, None] * self.num_nodes
        logp_PLD = logp_AN[actions.expand(self.num_prompts, -1, -1), nodes + first_P]
        return torch.where(there, logp_PLD, 0.0).sum(-1)

    def mean_ratio(self, theta: Tensor, drawn: Tensor) -> float:
        """Mean over tokens drawn with the logits `drawn` of their probability ratio, theta over
        drawn.
        """
        nodes, actions, there = self._steps
        own_AN, drawn_AN = theta.log_softmax(0), drawn.log_softmax(0)
        first_P = torch.arange(self.num_prompts)[:, None, None] * self.num_nodes
        place = actions.expand(self.num_prompts, -1, -1), nodes + first_P
        ratio_PLD = torch.where(drawn_AN == -math.inf, 0, own_AN - drawn_AN).exp()[place]
        weight_PLD = self.logp_PL(drawn).exp()[:, :, None] * there
        return float((ratio_PLD * weight_PLD).sum() / weight_PLD.sum())

    def values_N(self, theta: Tensor) -> Tensor:
        """Expected reward [P * N] from every node on; 0 where no path passes."""
        nodes, _, there = self._steps
        p_PL = self.logp_PL(theta).exp()
        value, mass = torch.zeros(2, self.num_prompts, self.num_nodes, dtype=theta.dtype)
        for level in range(self.depth):
            on = there[:, level]
            at = nodes[on, level].expand(self.num_prompts, -1)
            value.scatter_add_(1, at, (p_PL * self.rewards_PL)[:, on])
            mass.scatter_add_(1, at, p_PL[:, on])
        return torch.where(mass > 0, value / mass.clamp(min=1e-300), 0.0).flatten()

    def success_slope(self, theta: Tensor, rules: Sequence[Rule] = ()) -> Tensor:
        """The gradient of the policy's success under these cuts, as they fall at theta."""
        theta = theta.detach().double().requires_grad_()
        p_PL = self.logp_PL(cut(theta, rules)).exp()
        (slope,) = torch.autograd.grad((p_PL * self.rewards_PL.double()).sum(1).mean(), theta)
        return slope

    def truth(self, theta: Tensor, teacher: Tensor | None = None) -> Truth:
        """Exact success and entropy of the policy, with their gradients.

        teacher: logits of the policy to imitate, in place of rewards.
        """
        theta = theta.detach().double().requires_grad_()
        p_PL = self.logp_PL(theta).exp()
        _, _, there = self._steps
        logp_AN = theta.log_softmax(0)
        tokens = (p_PL * there.sum(1)).sum()
        entropy_PL = self._along_PL(-(logp_AN.exp() * logp_AN).sum(0))
        token_slope = None
        if teacher is None:
            success = (p_PL * self.rewards_PL.double()).sum(1).mean()
        else:
            gap_AN = teacher.double().log_softmax(0) - logp_AN
            near_PL = self._along_PL((logp_AN.exp() * gap_AN).sum(0))
            success = (p_PL * near_PL).sum(1).mean()
            fixed = (p_PL.detach() * near_PL).sum(1).mean()
            (token_slope,) = torch.autograd.grad(fixed, theta, retain_graph=True)
        entropy = (p_PL * entropy_PL).sum() / tokens
        towards, entropy_slope = (
            torch.autograd.grad(value, theta, retain_graph=True)[0] for value in (success, entropy)
        )
        return Truth(success.item(), entropy.item(), towards, entropy_slope, token_slope)

    def _along_PL(self, value_N: Tensor) -> Tensor:
        """Sum [P, L] of the nodes' values along each path."""
        nodes, _, there = self._steps
        value_PN = value_N.view(self.num_prompts, -1)
        return torch.where(there, value_PN[:, nodes], 0.0).sum(-1)


def cut(theta: Tensor, rules: Sequence[Rule]) -> Tensor:
    """The logits [A, N], with -inf for actions that the sampling rules remove."""
    logits_NA = theta.T
    for rule in rules:
        logits_NA = rule(logits_NA)
    return logits_NA.T


def paths_of(depth: int, branching: int, ragged: bool) -> list[tuple[int, ...]]:
    """Every answer; in a ragged tree action 0 ends one."""
    if not ragged:
        return list(itertools.product(range(branching), repeat=depth))
    found = []
    for length in range(1, depth + 1):
        for prefix in itertools.product(range(1, branching), repeat=length - 1):
            last = range(branching) if length == depth else (0,)
            found += [(*prefix, action) for action in last]
    return sorted(found)


def check_shape(depth: int, branching: int) -> None:
    """Raise UserError for a tree that is empty or too large to enumerate."""
    if depth < 1 or branching < 2:
        raise UserError(
            f"a tree of depth {depth} with {branching} branches: give a depth of at least 1 and at "
            "least 2 branches"
        )
    if depth * math.log(branching) > math.log(MOST_PATHS):
        raise UserError(
            f"a tree of depth {depth} with {branching} branches has too many paths, at most "
            f"{MOST_PATHS:,} can be enumerated: make it smaller"
        )


def random_tree(
    depth: int, branching: int, *, num_prompts: int = 1, share: float = 0.5, ragged: bool = False,
    seed: int = 0,
) -> Tree:  # fmt: skip
    """A tree with about the share `share` of right paths, at least one and not all."""
    check_shape(depth, branching)
    if not 0 < share < 1:
        raise UserError(f"the share of right paths must lie between 0 and 1, but it is {share}")
    num_paths = len(paths_of(depth, branching, ragged))
    num_right = min(max(round(share * num_paths), 1), num_paths - 1)
    rng = torch.Generator().manual_seed(seed)
    rewards_PL = torch.zeros(num_prompts, num_paths)
    for row in rewards_PL:
        row[torch.randperm(num_paths, generator=rng)[:num_right]] = 1.0
    return Tree(depth, branching, rewards_PL, ragged)


def random_policy(tree: Tree, success: float | None = None, seed: int = 0) -> Tensor:
    """Logits theta [A, P * N] with standard normal entries. If `success` is given, they are tilted
    so that every prompt has this expected reward.

    The tilted policy p(path) ~ p_0(path) exp(c r(path)) is the closest one in KL. Raises UserError
    for a success outside the range of a prompt's rewards.
    """
    rng = torch.Generator().manual_seed(seed)
    size = (tree.branching, tree.num_prompts * tree.num_nodes)
    theta = torch.randn(size, generator=rng, dtype=torch.float64)
    if success is None:
        return theta
    return torch.cat([_tilted(tree, theta, n, success) for n in range(tree.num_prompts)], dim=1)


def _tilted(tree: Tree, theta: Tensor, prompt: int, success: float) -> Tensor:
    """The logits of one prompt's tree with the requested success, by bisection."""
    reward_L = tree.rewards_PL[prompt].double()
    if not float(reward_L.min()) < success < float(reward_L.max()):
        raise UserError(
            f"a success of {success} cannot be reached with rewards between "
            f"{float(reward_L.min()):g} and {float(reward_L.max()):g}"
        )
    logp_L = tree.logp_PL(theta)[prompt]
    low, high = -60.0, 60.0
    for _ in range(200):
        middle = (low + high) / 2
        p_L = (logp_L + middle * reward_L).softmax(0)
        low, high = (middle, high) if float(p_L @ reward_L) < success else (low, middle)
    p_L = (logp_L + low * reward_L).softmax(0)
    tilted = torch.zeros(tree.branching, tree.num_nodes, dtype=torch.float64)
    for path, p in zip(tree.paths, p_L, strict=True):
        for at, action in enumerate(path):
            tilted[action, tree.node(0, path[:at])] += p
    mass = tilted.sum(0, keepdim=True)  # 0 where no path passes
    return torch.where(mass > 0, tilted.clamp(min=1e-300).log(), 0.0)
