"""The losses of the classes of difficulty, as controls read them."""

from collections.abc import Mapping


def losses_of(metrics: Mapping[str, float], num_bins: int) -> dict[int, tuple[float, float]]:
    """For each class that occurred, a rollout's mean loss and the class's share of the rollouts."""
    shares = [metrics.get(f"bins/share_{b}", 0.0) for b in range(num_bins)]
    total = sum(shares)
    return {
        b: (metrics[f"bins/loss_{b}"] / share, share / total)
        for b, share in enumerate(shares)
        if share > 0
    }
