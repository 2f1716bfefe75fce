"""What a critic's value stands for beyond the end of rollouts that were cut."""

from torch import Tensor


def bootstrapped(value_B: Tensor, cut_B: Tensor) -> dict[str, float]:
    """Share of scored rollouts that count as going on, and the mean value of what is beyond."""
    if not cut_B.numel():
        return {}
    found = {"bootstrap/frac_rollouts": float(cut_B.double().mean())}
    if bool(cut_B.any()):
        found["bootstrap/value_mean"] = float(value_B[cut_B].double().mean())
    return found
