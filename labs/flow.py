"""Flow policies in two dimensions: trees of denoising steps, turning points, and cheap exploration.
After BranchGRPO (arXiv 2509.06040), TurningPoint-GRPO (2602.06422) and Sol-RL (2604.06916);
docs/LABS.md says what is inferred.

    strop labs flow                                     # all three, three seeds
    strop labs flow --idea branch --picture branch.svg  # one of them, and its curves

A velocity net learns eight Gaussians on a ring by flow matching. A reward then pays for three of
them. Noise becomes a point in eight steps, and the likelihood of each is a Gaussian's, so what
strop makes of tokens holds for steps: advantages and losses are those of `strop.functional`.

branch  rollouts of a start share their beginnings: they branch at three steps, each depth of the
        tree is compared by itself, each edge learns once, and late edges of middling advantage are
        dropped. Beside it: as many rollouts from the same start, without a tree.
turning each prefix of a rollout is scored by its deterministic end, and a step that turns towards
        the end for good earns all that follows. Beside it: the end's reward for every step.
explore a sampler of two steps tries many seeds; the best and worst are drawn anew in eight and
        learnt from. Beside it: the same with eight steps at once, and no exploration.

Takes: a minute and a half.
"""

import argparse
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from strop import functional as F
from strop.evaluation.seeds import over_seeds

STEPS = 8  # of denoising
SHIFT = 3.0  # of their noise levels, as in the paper's launch script
ETA = 0.7  # noise of a stochastic step
ANGLES = torch.arange(8) * (math.pi / 4)
MODES = 2 * torch.stack([ANGLES.cos(), ANGLES.sin()], 1)
GOOD = (0, 1, 4)
WIDE = 0.5  # distance from a good mode at which the reward has fallen to exp(-1/2)
SPLITS = {0: 2, 2: 2, 4: 2}  # step -> children of a node there
LR = 3e-4
CLIP = 1e-3  # of ratios whose log-densities are means over dimensions

# ---- a policy that denoises


class Velocity(nn.Module):
    """v(x, sigma), and how many points it was asked for."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(5, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2),
        )  # fmt: skip
        self.calls = 0

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        s = torch.as_tensor(sigma).expand(x.shape[:-1])
        self.calls += s.numel()
        waves = torch.stack([s, (math.pi * s).sin(), (math.pi * s).cos()], -1)
        return self.net(torch.cat([x, waves], -1))


def pretrained(updates: int = 1500, seed: int = 0) -> Velocity:
    """A net that has learnt the ring: (eps - x0) at x = (1 - sigma) x0 + sigma eps."""
    torch.manual_seed(seed)
    net = Velocity()
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, updates)
    for _ in range(updates):
        x0 = MODES[torch.randint(8, (256,))] + 0.15 * torch.randn(256, 2)
        eps, sigma = torch.randn(256, 2), torch.rand(256)
        x = x0 + sigma[:, None] * (eps - x0)
        optimiser.zero_grad()
        (net(x, sigma) - (eps - x0)).square().mean().backward()
        optimiser.step()
        schedule.step()
    net.calls = 0
    return net


def reward(x: Tensor) -> Tensor:
    """Nearness to the nearest good mode, 1 at its centre."""
    away = (x[..., None, :] - MODES[list(GOOD)]).square().sum(-1).amin(-1)
    return (-away / (2 * WIDE**2)).exp()


def levels(steps: int = STEPS) -> Tensor:
    """Noise levels from 1 to 0 [steps + 1]."""
    even = torch.linspace(1, 0, steps + 1)
    return SHIFT * even / (1 + (SHIFT - 1) * even)


def kernel(v: Tensor, x: Tensor, sigma: Tensor, ds: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the next point; ds < 0. sigma and ds: numbers, or [..., 1]."""
    x0 = x - sigma * v
    score = -(x - (1 - sigma) * x0) / sigma**2
    return x + ds * v - 0.5 * ETA**2 * score * ds, (ETA * (-ds).sqrt()).clamp(min=1e-8)


def log_density(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """The mean over dimensions of a Gaussian's log-density, as the papers' code takes it."""
    each = -((x - mean) ** 2) / (2 * std**2) - std.log() - 0.5 * math.log(2 * math.pi)
    return each.mean(-1)


@torch.no_grad()
def finish(net: Velocity, x: Tensor, at: int = 0, steps: int = STEPS) -> Tensor:
    """The deterministic end of a way that stands before step `at`."""
    sigma = levels(steps)
    for s in range(at, steps):
        x = x + (sigma[s + 1] - sigma[s]) * net(x, sigma[s])
    return x


# ---- edges: steps that are learnt


@dataclass
class Edges:
    """Steps [E] of ways, from one point to the next, with the log-density when they were drawn."""

    step: Tensor
    before: Tensor  # [E, 2]
    after: Tensor  # [E, 2]
    logp: Tensor
    advantage: Tensor

    def __getitem__(self, rows: Tensor) -> "Edges":
        return Edges(*(column[rows] for column in vars(self).values()))

    def __len__(self) -> int:
        return len(self.step)


@torch.no_grad()
def grow(
    net: Velocity, start: Tensor, widths: Mapping[int, int]
) -> tuple[list[tuple[Tensor, Tensor, Tensor]], Tensor]:
    """Trees [P, nodes] from starts [P, 2]: of each stochastic step the points before and after it
    and its log-density, and the leaves' rewards [P, G]. The last step is deterministic.

    A node that branches is looked at once, and its children are drawn from the same Gaussian.
    """
    sigma, x, found = levels(), start[:, None], []
    for s in range(STEPS - 1):
        mean, std = kernel(net(x, sigma[s]), x, sigma[s], sigma[s + 1] - sigma[s])
        width = widths.get(s, 1)
        x, mean = (each.repeat_interleave(width, 1) for each in (x, mean))
        after = mean + std * torch.randn_like(mean)
        found.append((x, after, log_density(after, mean, std)))
        x = after
    return found, reward(finish(net, x, STEPS - 1))


def compare_depth(values: Tensor) -> Tensor:
    """Advantages of the nodes [P, n] of a depth, each tree by itself; 0 for one, or for equals."""
    if values.shape[1] < 2:
        return torch.zeros_like(values)
    std = values.std(1, keepdim=True)
    found = (values - values.mean(1, keepdim=True)) / (std + 1e-8)
    return torch.where(std < 1e-6, 0.0, found).clamp(-5, 5)


def back_up(rewards: Tensor, logps: Sequence[Tensor], alpha: float = 0.0) -> list[Tensor]:
    """Values [P, n] of the nodes of each depth, from the leaves' rewards [P, G] up: the mean of the
    children, weighted by the softmax of alpha times the log-density of the edge to them.

    logps: of the edges [P, n] into each depth. alpha 0: plainly the mean of the leaves below.
    """
    values = [rewards]
    for above, logp in zip(logps[-2::-1], logps[:0:-1], strict=True):
        siblings = (above.shape[1], -1)
        share = (alpha * logp).unflatten(1, siblings).softmax(-1)
        values.append((share * values[-1].unflatten(1, siblings)).sum(-1))
    return values[::-1]


def edges_of(steps: Sequence[tuple[Tensor, Tensor, Tensor]], advantages: Sequence[Tensor]) -> Edges:
    """All edges of all trees, each of them once."""
    columns: list[list[Tensor]] = [[] for _ in range(5)]
    for s, (step, a) in enumerate(zip(steps, advantages, strict=True)):
        for column, each in zip(columns, (torch.full(a.shape, s), *step, a), strict=True):
            column.append(each.flatten(0, 1))
    return Edges(*(torch.cat(column) for column in columns))


def count_edges(widths: Mapping[int, int], steps: int) -> int:
    """Edges of a tree."""
    return sum(math.prod(widths.get(s, 1) for s in range(at + 1)) for at in range(steps))


def prune_width(edges: Edges, last_split: int, ratio: float) -> Tensor:
    """Rows that stay: all up to the last split; of those behind it, over all trees, the best and
    the worst.
    """
    late = (edges.step > last_split).nonzero().squeeze(1)
    keep = min(max(2, int(ratio * len(late))), len(late))
    order = late[edges.advantage[late].argsort(descending=True)]
    ends = torch.cat([order[: keep // 2], order[len(order) - (keep - keep // 2) :]])
    return torch.cat([(edges.step <= last_split).nonzero().squeeze(1), ends])


def prune_depth(depths: Sequence[int], step: int, interval: int, stop: int) -> set[int]:
    """The depths whose edges are dropped at a training step: a window that moves up the tree."""
    shift = min(step // interval, max(0, min(depths) - stop))
    return {depth - shift for depth in depths}


def learn(
    net: Velocity, optimiser: torch.optim.Optimizer, edges: Edges, clip: float, parts: int = 4
) -> None:
    """One pass over shuffled edges, in so many updates, with grpo's loss: an edge is a row of one
    token.
    """
    sigma = levels()
    for rows in torch.randperm(len(edges)).chunk(parts):
        part = edges[rows]
        s, ds = sigma[part.step, None], (sigma[part.step + 1] - sigma[part.step])[:, None]
        v = net(part.before, s.squeeze(1))
        logp = log_density(part.after, *kernel(v, part.before, s, ds))
        loss, _ = F.policy_loss(
            "grpo", logp=logp[:, None], logp_old=part.logp[:, None],
            advantages=part.advantage[:, None], mask=torch.ones(len(rows), 1),
            params={"clip_low": clip, "clip_high": clip, "beta": 0.0},
        )  # fmt: skip
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()


# ---- the three ideas, each as one update

Update = Callable[[Velocity, torch.optim.Optimizer], None]


def branch(
    widths: Mapping[int, int], ratio: float = 1.0, alpha: float = 0.0, prompts: int = 16
) -> Update:
    """A tree a start. `ratio`: the share of edges behind the last split that are learnt.

    Split once and at the first step it is grpo's group, with every step compared alike.
    """

    def update(net: Velocity, optimiser: torch.optim.Optimizer) -> None:
        steps, rewards = grow(net, torch.randn(prompts, 2), widths)
        values = back_up(rewards, [logp for _, _, logp in steps], alpha)
        edges = edges_of(steps, [compare_depth(each) for each in values])
        if ratio < 1:
            edges = edges[prune_width(edges, max(widths), ratio)]
        learn(net, optimiser, edges, CLIP)

    return update


def turning(turns: bool, prompts: int = 8, group: int = 12) -> Update:
    """Steps credited by scores of prefixes, or by the end's reward alone."""

    def update(net: Velocity, optimiser: torch.optim.Optimizer) -> None:
        start = torch.randn(prompts * group, 2)
        steps, rewards = grow(net, start, {})
        groups = torch.arange(prompts).repeat_interleave(group)
        if turns:
            points = [start, *(after[:, 0] for _, after, _ in steps[:-1])]
            ends = [reward(finish(net, x, s)) for s, x in enumerate(points)]
            scores = torch.stack([*ends, rewards[:, 0]], 1)
            found = F.advantages("turning_point_grpo", prefix_scores=scores, groups=groups)
        else:
            each = F.advantages(
                "grpo", rewards=rewards[:, 0], groups=groups, params={"eps": 1e-4, "std": "biased"}
            )
            found = each[:, None].expand(-1, len(steps))
        edges = edges_of(steps, [found[:, s, None] for s in range(len(steps))])
        learn(net, optimiser, edges, CLIP)

    return update


def best_worst(rewards: Tensor, keep: int) -> Tensor:
    """Of each row [P, N] the keep / 2 highest and the keep / 2 lowest, as columns [P, keep]."""
    order = rewards.argsort(dim=1, descending=True, stable=True)
    return torch.cat([order[:, : keep // 2], order[:, order.shape[1] - keep // 2 :]], 1)


def nft_loss(
    v: Tensor, v_old: Tensor, x: Tensor, sigma: Tensor, x0: Tensor, advantage: Tensor,
    c: float = 5.0, b: float = 1.0,
) -> Tensor:  # fmt: skip
    """DiffusionNFT's loss []: towards clean samples of positive advantage, away from the others."""
    share = (advantage.clamp(-c, c) / (2 * c) + 0.5).clamp(0, 1)
    errors = []
    for velocity in (b * v + (1 - b) * v_old, (1 + b) * v_old - b * v):
        miss = x - sigma * velocity - x0
        scale = miss.detach().abs().mean(-1, keepdim=True).clamp(min=1e-5)
        errors.append((miss.square() / scale).mean(-1))
    return c * (share * errors[0] / b + (1 - share) * errors[1] / b).mean()


def explore(tried: int, kept: int, coarse: int, prompts: int = 8, decay: float = 0.9) -> Update:
    """Try seeds with a sampler of `coarse` steps, draw the extremes anew in full and learn them.

    tried == kept: no exploration. The weights that draw follow those that learn.
    """
    drawer: list[Velocity] = []

    def update(net: Velocity, optimiser: torch.optim.Optimizer) -> None:
        old = drawer[0] if drawer else copy.deepcopy(net)
        drawer[:], old.calls = [old], 0
        seeds = torch.randn(prompts, tried, 2)
        if kept < tried:
            rows = best_worst(reward(finish(old, seeds, steps=coarse)), kept)
            seeds = seeds.gather(1, rows[..., None].expand(-1, -1, 2))
        # An exact sampler that explores has drawn them already; they are counted once.
        before = old.calls
        x0 = finish(old, seeds)
        old.calls = before if kept < tried and coarse == STEPS else old.calls
        groups = torch.arange(prompts).repeat_interleave(kept)
        found = F.advantages(
            "sol_rl_explore_then_train", rewards=reward(x0).flatten(), groups=groups
        )
        x0 = x0.flatten(0, 1)
        for s in levels()[:-1]:
            x = x0 + s * (torch.randn_like(x0) - x0)
            with torch.no_grad():
                v_old = old(x, s)
            loss = nft_loss(net(x, s), v_old, x, s, x0, found)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimiser.step()
        net.calls += old.calls
        with torch.no_grad():
            for own, new in zip(old.parameters(), net.parameters(), strict=True):
                own.lerp_(new, 1 - decay)

    return update


def ranks(values: Tensor) -> Tensor:
    """Ranks of numbers that differ."""
    return values.argsort().argsort().float()


def rank_agreement(one: Tensor, two: Tensor) -> tuple[float, float]:
    """Spearman's and Kendall's correlation of two rows of numbers that differ."""
    spearman = torch.corrcoef(torch.stack([ranks(one), ranks(two)]))[0, 1]
    signs = [(each[:, None] - each).sign() for each in (one, two)]
    n = len(one)
    return float(spearman), float((signs[0] * signs[1]).sum() / (n * (n - 1)))


# ---- all of it


def arms_of(idea: str) -> Mapping[str, Update]:
    """The ways of learning that an idea is shown by, the one that it is set beside first."""
    leaves = math.prod(SPLITS.values())
    return {
        "branch": {
            "flat group": branch({0: leaves}),
            "tree": branch(SPLITS),
            "tree, half of the late edges": branch(SPLITS, ratio=0.5),
            "tree, weighted by density": branch(SPLITS, alpha=1.0),
        },
        "turning": {"reward of the end": turning(False), "turning points": turning(True)},
        "explore": {
            "12 seeds": explore(12, 12, STEPS),
            "12 of 48, tried in 2 steps": explore(48, 12, 2),
            "12 of 48, tried in 8 steps": explore(48, 12, STEPS),
        },
    }[idea]


IDEAS = ("branch", "turning", "explore")


@dataclass(frozen=True)
class Curve:
    """Reward along a training run, over updates and over model calls."""

    updates: list[int]
    calls: list[int]
    rewards: list[float]

    def end(self) -> float:
        """Mean of the last three."""
        return sum(self.rewards[-3:]) / len(self.rewards[-3:])

    def at_calls(self, calls: float) -> float:
        """The reward after so many calls, on the line between those that are known."""
        for i in range(1, len(self.calls)):
            if self.calls[i] >= calls:
                share = (calls - self.calls[i - 1]) / (self.calls[i] - self.calls[i - 1])
                return self.rewards[i - 1] + share * (self.rewards[i] - self.rewards[i - 1])
        return self.rewards[-1]


def measured(net: Velocity, deterministic: bool, points: int = 1024) -> float:
    """Mean reward of the sampler that is trained, over the same noise each time; not counted."""
    calls = net.calls
    with torch.random.fork_rng():
        torch.manual_seed(12345)
        start = torch.randn(points, 2)
        found = reward(finish(net, start)) if deterministic else grow(net, start, {})[1]
    net.calls = calls
    return float(found.mean())


def train(base: Velocity, idea: str, arm: str, seed: int, updates: int) -> Curve:
    """One run."""
    update = arms_of(idea)[arm]
    net = copy.deepcopy(base)
    net.calls = 0
    torch.manual_seed(seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=LR)
    curve = Curve([], [], [])
    for number in range(updates + 1):
        if number % 10 == 0 or number == updates:
            curve.updates.append(number)
            curve.calls.append(net.calls)
            curve.rewards.append(measured(net, idea == "explore"))
        if number < updates:
            update(net, optimiser)
    return curve


def agreement(net: Velocity, coarse: int, prompts: int = 8, tried: int = 48) -> tuple[float, float]:
    """Spearman's and Kendall's correlation of rewards with `coarse` steps and with all of them."""
    torch.manual_seed(7)
    seeds = torch.randn(prompts, tried, 2)
    cheap, full = reward(finish(net, seeds, steps=coarse)), reward(finish(net, seeds))
    pairs = [rank_agreement(*rows) for rows in zip(cheap, full, strict=True)]
    spearman, kendall = (sum(each) / prompts for each in zip(*pairs, strict=True))
    return spearman, kendall


def report(curves: Mapping[str, Sequence[Curve]]) -> None:
    """Each arm at the end and at equal calls, and how far it is from the first."""
    least = min(each[0].calls[-1] for each in curves.values())
    first = next(iter(curves))
    print(f"  {'':30} calls/update  reward at the end            after {least:,} calls")
    for name, runs in curves.items():
        per = runs[0].calls[-1] / runs[0].updates[-1]
        ends, equal = [r.end() for r in runs], [r.at_calls(least) for r in runs]
        print(f"  {name:30} {per:12,.0f}  {f'{over_seeds(ends):.3f}':28} {over_seeds(equal):.3f}")
        if name != first:
            beside = curves[first]
            ends = [a - b.end() for a, b in zip(ends, beside, strict=True)]
            equal = [a - b.at_calls(least) for a, b in zip(equal, beside, strict=True)]
            print(f"  {'  less ' + first:30} {'':12}  {f'{over_seeds(ends):.3f}':28} "
                  f"{over_seeds(equal):.3f}")  # fmt: skip


# ---- the picture

COLOURS = ("#555555", "#0072b2", "#d55e00", "#009e73")


def picture(found: Mapping[str, Mapping[str, Sequence[Curve]]], where: Path) -> None:
    """An SVG: reward over updates and over model calls, a row for each idea; a band is the range of
    the seeds.
    """
    wide, high = 380, 230
    shapes = []
    for row, (idea, curves) in enumerate(found.items()):
        for column, axis in enumerate(("updates", "calls")):
            left, top = 50 + column * (wide + 30), 30 + row * (high + 50)
            shapes.append(panel(f"{idea}: reward over {AXES[axis][0]}", curves, axis, left, top))
    size = f"{2 * wide + 60} {len(found) * (high + 50)}"
    where.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>{"".join(shapes)}</svg>\n'
    )


AXES = {"updates": ("updates", 1), "calls": ("thousands of model calls", 1000)}


def panel(title: str, curves: Mapping[str, Sequence[Curve]], axis: str, left: int, top: int) -> str:
    """One set of axes with its curves."""
    wide, high = 320, 190
    most = max(getattr(run, axis)[-1] for runs in curves.values() for run in runs)

    def at(x: float, y: float) -> str:
        return f"{left + wide * x / most:.1f},{top + high * (1 - y):.1f}"

    found = [f'<text x="{left}" y="{top - 8}" font-weight="bold">{title}</text>']
    for y in (0.0, 0.25, 0.5, 0.75, 1.0):
        found.append(f'<path d="M{at(0, y)} L{at(most, y)}" stroke="#dddddd"/>')
        height = top + high * (1 - y) + 4
        found.append(f'<text x="{left - 6}" y="{height:.0f}" text-anchor="end">{y:g}</text>')
    for x in (0, most / 2, most):
        place = left + wide * x / most
        found.append(f'<text x="{place:.0f}" y="{top + high + 15}" text-anchor="middle">'
                     f"{x / AXES[axis][1]:.0f}</text>")  # fmt: skip
    for number, (name, runs) in enumerate(curves.items()):
        colour, x = COLOURS[number], getattr(runs[0], axis)
        values = list(zip(*(run.rewards for run in runs), strict=True))
        band = [at(a, max(v)) for a, v in zip(x, values, strict=True)]
        band += [at(a, min(v)) for a, v in zip(x[::-1], values[::-1], strict=True)]
        line = [at(a, sum(v) / len(v)) for a, v in zip(x, values, strict=True)]
        found.append(f'<path d="M{" L".join(band)} Z" fill="{colour}" opacity="0.15"/>')
        found.append(f'<path d="M{" L".join(line)}" fill="none" stroke="{colour}"/>')
        height = top + high - 8 - 14 * (len(curves) - 1 - number)
        found.append(f'<text x="{left + wide - 4}" y="{height}" text-anchor="end" '
                     f'fill="{colour}">{name}</text>')  # fmt: skip
    return "".join(found)


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--idea", choices=IDEAS, help="one of the three; default: all")
    add("--seeds", type=int, default=3)
    add("--updates", type=int, default=120)
    add("--pretraining", type=int, default=1500, help="updates of flow matching")
    add("--picture", type=Path, help="an SVG file to write")
    options = parser.parse_args(words)
    for name in ("seeds", "updates", "pretraining"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.picture and not options.picture.parent.is_dir():
        parser.error(f"{options.picture}: there is no such folder")
    base = pretrained(options.pretraining)
    found = {}
    for idea in [options.idea] if options.idea else IDEAS:
        print(f"{idea}: reward before {measured(base, idea == 'explore'):.3f}", flush=True)
        found[idea] = {
            name: [train(base, idea, name, seed, options.updates) for seed in range(options.seeds)]
            for name in arms_of(idea)
        }
        report(found[idea])
    if options.idea in (None, "explore"):
        print("rank agreement with 8 steps, before training: Spearman, Kendall")
        for coarse in (1, 2, 4):
            print("  {} steps: {:.3f}, {:.3f}".format(coarse, *agreement(base, coarse)))
    if options.picture:
        picture(found, options.picture)


if __name__ == "__main__":
    main()
