"""Values of far goals, learnt on a time axis that is n times coarser. After OTA, arXiv 2505.12737,
whose code could not be had; docs/LABS.md says what is inferred.

    strop labs ota_value
    strop labs ota_value --seeds 5 --updates 4000 --picture ota.svg

A corridor is folded into rows, so that places beside each other may be far apart. Walks in it are
given, and a network learns, by HIQL's update, the value of every place for every goal. With n
steps as one transition (an option) the horizon is n times shorter. The paper's diagnostic is the
order consistency: how often a subgoal k steps nearer to the goal has the higher value, which is
the sign that a high-level policy learns from. Printed are its shares by distance, for each n, at
equal updates, and for n = 1 with more updates as a control: coarser steps carry a goal's value n
times farther in each update, and that alone might be all of it.

Takes: two minutes.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from strop import UserError
from strop.api.plot import Plot
from strop.evaluation.seeds import SHARE, over_seeds
from strop.report.charts import COLOURS, Chart

GAMMA, EXPECTILE, POLYAK, RATE = 0.99, 0.7, 0.005, 3e-4  # HIQL's
SUBGOAL = 25  # steps to a subgoal, HIQL's k
BANDS = (50, 100, 200, 300, 400)  # distances of the goal, each from the one before


def exact(distance: float) -> float:
    """The value of a place so many steps from the goal, each of which costs 1 until it is there."""
    return -(1 - GAMMA**distance) / (1 - GAMMA)


def exact_advantage(distance: int, n: int, k: int = SUBGOAL) -> float:
    """How much higher a subgoal's value is, k steps nearer, on a time axis n times coarser."""
    return exact((distance - k) / n) - exact(distance / n)


def places(rows: int, columns: int) -> NDArray[np.float64]:
    """The corridor's places in their order, in the unit square; every second row runs back."""
    across = [c if row % 2 == 0 else columns - 1 - c for row in range(rows) for c in range(columns)]
    down = np.repeat(np.arange(rows), columns)
    return np.stack([np.array(across) / (columns - 1), down / (rows - 1)], axis=1)


def walks(rng: np.random.Generator, number: int, steps: int, length: int) -> NDArray[np.int64]:
    """Walks, [number, steps + 1] of places: each keeps its direction but for one step in ten."""
    ahead = rng.choice([-1, 1], size=(number, 1))
    moves = np.where(rng.random((number, steps)) < 0.9, ahead, -ahead)
    at, found = rng.integers(0, length, number), []
    for step in moves.T:
        found.append(at)
        at = np.clip(at + step, 0, length - 1)
    return np.stack([*found, at], axis=1)


def drawn(
    rng: np.random.Generator, walked: NDArray[np.int64], size: int, n: int
) -> tuple[NDArray[np.int64], ...]:
    """Place, the place an option of n steps on, goal, and whether the option ended at the goal.

    As in HIQL a goal is the place itself (0.2), a later one of the walk (0.5) or any other (0.3).
    An option that meets its goal ends there.
    """
    steps = walked.shape[1] - 1
    row, at = rng.integers(0, len(walked), size), rng.integers(0, steps, size)
    later = np.minimum(at + rng.geometric(1 - GAMMA, size), steps)
    kind = rng.random(size)
    anywhere = walked[rng.integers(0, len(walked), size), rng.integers(0, steps, size)]
    goal = np.where(kind < 0.3, anywhere, walked[row, np.where(kind < 0.5, at, later)])
    option = walked[row[:, None], np.minimum(at[:, None] + np.arange(n + 1), steps)]
    met = option == goal[:, None]
    end = np.where(met.any(1), met.argmax(1), n)
    return walked[row, at], option[np.arange(size), end], goal, met.any(1)


def target(worth: Tensor, there: Tensor) -> Tensor:
    """r + gamma V(s', g), where r is 0 and nothing follows if the option ended at the goal."""
    return torch.where(there, 0.0, -1.0 + GAMMA * worth)


def expectile_loss(advantage: Tensor, off: Tensor) -> Tensor:
    """|tau - 1{advantage < 0}| (q - V)^2, the mean."""
    return ((EXPECTILE - (advantage < 0).float()).abs() * off**2).mean()


def network(width: int) -> nn.Module:
    """Two values of (place, goal)."""
    layers = [nn.Linear(4, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.LayerNorm(width), nn.GELU(), nn.Linear(width, 2))


@dataclass(frozen=True)
class Sizes:
    """Of all networks alike."""

    updates: int = 2000
    batch: int = 256
    width: int = 96
    rows: int = 20
    columns: int = 20
    walks: int = 400
    steps: int = 400


def learnt(sizes: Sizes, n: int, seed: int, updates: int) -> tuple[nn.Module, Tensor]:
    """A network after so many updates on the walks of a seed, and the corridor."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    corridor = torch.tensor(places(sizes.rows, sizes.columns), dtype=torch.float32)
    walked = walks(rng, sizes.walks, sizes.steps, len(corridor))
    values, slow = network(sizes.width), network(sizes.width)
    slow.load_state_dict(values.state_dict())
    optimiser = torch.optim.Adam(values.parameters(), RATE)
    for _ in range(updates):
        at, then, goal, there = map(torch.from_numpy, drawn(rng, walked, sizes.batch, n))
        with torch.no_grad():
            ahead = slow(torch.cat([corridor[then], corridor[goal]], 1))
            here = slow(torch.cat([corridor[at], corridor[goal]], 1))
            advantage = target(ahead.min(1).values, there) - here.mean(1)
        now = values(torch.cat([corridor[at], corridor[goal]], 1))
        loss = sum(
            expectile_loss(advantage, target(ahead[:, j], there) - now[:, j]) for j in range(2)
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            for old, new in zip(slow.parameters(), values.parameters(), strict=True):
                old.lerp_(new, POLYAK)
    return values, corridor


@torch.no_grad()
def consistency(values: nn.Module, corridor: Tensor) -> list[float]:
    """Shares of pairs (place, goal) whose subgoal has the higher value, by the goal's distance."""
    length, shares = len(corridor), []
    table = torch.stack([values(torch.cat([corridor, g.expand(length, 2)], 1)).mean(1)
                         for g in corridor])  # fmt: skip
    table = table.numpy()  # [goals, places]
    for near, far in zip((SUBGOAL, *BANDS), BANDS, strict=False):
        right = [
            table[goal, goal + side * (distance - SUBGOAL)] > table[goal, goal + side * distance]
            for distance in range(near + 1, min(far, length - 1) + 1)
            for side in (-1, 1)
            for goal in range(length)
            if 0 <= goal + side * distance < length
        ]
        shares.append(float(np.mean(right)) if right else float("nan"))
    return shares


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Values on a coarser time axis.")
    add = parser.add_argument
    add("--seeds", type=int, default=3)
    add("--updates", type=int, default=Sizes.updates)
    add(
        "--options", type=int, nargs="+", default=[1, 5, 20], metavar="N", help="steps of an option"
    )
    add("--control", type=int, default=3, help="times the updates: a further run with n = 1")
    add("--picture", type=Path, help="draw the shares over distances (.svg)")
    options = parser.parse_args(words)
    if min(options.seeds, options.updates, options.control, *options.options) < 1:
        parser.error("seeds, updates, --control and --options must be 1 or more")
    sizes = Sizes(options.updates)
    runs = [(f"n = {n}", n, options.updates) for n in options.options]
    runs += [(f"n = 1, updates x {options.control}", 1, options.control * options.updates)]
    traces = []
    print("order consistency by the goal's distance, up to " + ", ".join(map(str, BANDS)))
    for colour, (name, n, updates) in zip(COLOURS, runs, strict=False):
        found = [consistency(*learnt(sizes, n, seed, updates)) for seed in range(options.seeds)]
        means = [over_seeds(values, within=SHARE) for values in zip(*found, strict=True)]
        print(f"  {name:18} " + "; ".join(f"{mean:.3f}" for mean in means), flush=True)
        mean = np.mean(found, axis=0).tolist()
        traces.append({"x": list(BANDS), "y": mean, "name": name, "mode": "lines+markers",
                       "line": {"color": colour, "width": 2}})  # fmt: skip
    if options.picture:
        shown = {"showlegend": True}
        chart = Chart("Subgoals of higher value, by distance", "", tuple(traces), shown)
        try:
            print(f"wrote {Plot((chart,)).save(options.picture)}")
        except UserError as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
