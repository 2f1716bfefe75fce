"""Metrics of the critic's value that replaces what follows the end of cut rollouts."""

from torch import Tensor

FRACTION, VALUE = "bootstrap/frac_rollouts", "bootstrap/value_mean"


def unlogged(bootstraps: bool) -> frozenset[str]:
    """The metrics that are not logged where no cut rollout counts as continuing."""
    return frozenset() if bootstraps else frozenset({FRACTION, VALUE})


def bootstrapped(value_B: Tensor, cut_B: Tensor) -> dict[str, float]:
    """Share of scored rollouts that count as continuing, and the mean value beyond their end."""
    if not cut_B.numel():
        return {}
    beyond = value_B[cut_B].double().sum() / cut_B.sum().clamp(min=1)
    share = cut_B.double().mean()
    return {FRACTION: float(share), VALUE: float(beyond)}
