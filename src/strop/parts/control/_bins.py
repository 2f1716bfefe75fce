"""What controls read of the classes of difficulty."""

from collections.abc import Mapping


def losses_of(metrics: Mapping[str, float], num_bins: int) -> dict[int, tuple[float, float]]:
    """Mean loss of a rollout, and the class's share of the rollouts, of each class there was."""
    shares = [metrics.get(f"bins/share_{b}", 0.0) for b in range(num_bins)]
    total = sum(shares)
    return {
        b: (metrics[f"bins/loss_{b}"] / share, share / total)
        for b, share in enumerate(shares)
        if share > 0
    }
