"""Draws one token for each row and records the requested statistics.

A draw is inverse-CDF sampling from one uniform number per row, and that number is a hash of
(seed, position): nothing else in the batch can change it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from strop.engines.base import Request, Rule
from strop.support.devices import to_device, why_no_kernels
from strop.support.errors import UserError

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# columns of a record; from TOP on: id and log-probability of the most likely token, the next, ...
TOKEN, LOGP, LOGP_MODEL, ENTROPY, TOP = range(5)
SMALL, BLOCK = 1024, 128  # tokens of a vocabulary that is summed up in blocks, and of a block
LEAST = -1e30  # a relative logit whose weight is 0 in any precision


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser on uint64 [N] (Steele, Lea and Flood 2014): a bijection."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """A number in [0, 1) with 52 random bits for each (seed, position), both uint64 [N]."""
    bits = mix(mix(seeds + GOLDEN) + (positions + np.uint64(1)) * GOLDEN)
    return (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52


def seed_behind(request: Request, bits: int) -> int:
    """A seed of so many bits, made from the request's and the number of its prompt's tokens, so
    that a continuation does not repeat the draws of the request that it continues.
    """
    seed = np.array([request.seed & (2**64 - 1)], np.uint64)
    return int(mix(mix(seed) + np.uint64(len(request.ids)))[0] >> np.uint64(64 - bits))


Rows: TypeAlias = slice | Tensor
Setting = TypeVar("Setting", bound=Hashable)


@dataclass(frozen=True)
class Plan:
    """How to treat each row of a batch; a field is None if no row needs it, and costs nothing."""

    temperature: Tensor | None  # [N, 1]; None: all 1
    greedy: Tensor | None  # [N, 1] bool
    rules: tuple[tuple[Rows, tuple[Rule, ...]], ...]  # rows that share these rules
    model: Rows | None  # rows that want logp_model or entropy
    top: Rows | None
    kept: np.ndarray  # [N] bool: rows that want the sets that their rules keep; on the host
    num_top: int  # the largest number that any row requests
    stops: np.ndarray  # [sets, V] bool: tokens that end a request; on the host
    stop_set: np.ndarray  # [N] row of `stops`
    refused: dict[tuple[Rule, ...], str]  # why rules could not be applied; filled by `draw`

    @property
    def plain(self) -> bool:
        """Whether all rows want the model's statistics and sample from the model's distribution:
        then the statistics of the draw are the model's.
        """
        drawn = self.greedy is None and not self.rules
        return drawn and isinstance(self.model, slice)

    @property
    def width(self) -> int:
        """Columns of a record."""
        if self.num_top:
            return TOP + 2 * self.num_top
        return LOGP + 1 if self.model is None else TOP

    def ends(self, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """From records on the host: which tokens end their request, and which draws failed."""
        return self.stops[self.stop_set, records[:, TOKEN].astype(np.int64)], np.isnan(
            records[:, LOGP]
        )


def make_plan(
    requests: Sequence[Request],
    vocab_size: int,
    device: torch.device,
    like: np.ndarray | None = None,
) -> Plan:
    """Group the rows of a batch by their sampling options.

    like [N]: the index of the request that each row is sampled like; None: one row per request.
    """
    like = np.arange(len(requests)) if like is None else like

    def rows(asked: Sequence[bool] | np.ndarray) -> Rows | None:
        chosen = np.asarray(asked)[like]
        if chosen.all():
            return slice(None)
        return to_device(np.flatnonzero(chosen), device) if chosen.any() else None

    def column(values: Sequence[float] | np.ndarray) -> Tensor:
        return to_device(np.asarray(values)[like], device)

    greedy = [request.temperature == 0 for request in requests]
    scale = [float(request.temperature or 1.0) for request in requests]
    rules, rules_of = _numbered([request.rules for request in requests])
    ruled = [(rows(rules_of == number), each) for number, each in enumerate(rules) if each]
    stop_sets, stop_set_of = _numbered([request.stop_ids for request in requests])
    stops = np.zeros((len(stop_sets), vocab_size), dtype=np.bool_)
    for line, ids in enumerate(stop_sets):
        stops[line, list(ids)] = True
    return Plan(
        temperature=column(scale)[:, None] if any(value != 1.0 for value in scale) else None,
        greedy=column(greedy)[:, None] if any(greedy) else None,
        rules=tuple((chosen, each) for chosen, each in ruled if chosen is not None),
        model=rows([bool({"logp_model", "entropy"} & request.want) for request in requests]),
        top=rows([bool(request.num_top) for request in requests]),
        kept=np.array([bool(request.rules) and "kept" in request.want for request in requests])[
            like
        ],
        num_top=max((request.num_top for request in requests), default=0),
        stops=stops,
        stop_set=stop_set_of[like],
        refused={},
    )


def _numbered(values: Sequence[Setting]) -> tuple[list[Setting], np.ndarray]:
    """The distinct values, and the index of each value among them."""
    numbers: dict[Setting, int] = {}
    of = [numbers.setdefault(value, len(numbers)) for value in values]
    return list(numbers), np.array(of)


# For each row the int32 ids that its rules kept, as bytes: empty where they kept all, and where the
# set is not wanted.
Sets: TypeAlias = np.ndarray


def draw(logits: Tensor, plan: Plan, uniform: Tensor) -> tuple[Tensor, Tensor, Sets | None]:
    """Draw by inverse CDF: token ids [N], records [N, plan.width] float64 (NaN: not wanted), and
    the kept sets [N] where a row wants them.

    logits [N, V] at temperature 1; uniform [N] float64. A row without any allowed token, or with
    logits that are not finite, gets a NaN log-probability, and so does one whose rules raise
    UserError: the engine ends it.
    """
    if plan.rules or plan.greedy is not None:
        ruled = _apply_rules(_scaled(logits, plan.temperature), plan)
        token, logp, entropy = _pick(ruled, None, uniform, plan.plain)
        if plan.greedy is not None:
            token, logp = _with_greedy(ruled, plan.greedy, token, logp)
    else:
        ruled = logits
        pick = _pick if why_no_kernels(logits.device) else _compiled_pick()
        token, logp, entropy = pick(logits, plan.temperature, uniform, plan.plain)
    record = torch.cat([token, logp.double()], dim=-1)
    if plan.width > LOGP + 1:
        record = torch.nn.functional.pad(record, (0, plan.width - LOGP - 1), value=torch.nan)
    if entropy is not None:
        record[:, LOGP_MODEL] = record[:, LOGP]
        record[:, ENTROPY] = entropy
    _add_statistics(record, token, logits, plan)
    return token[:, 0], record, _kept(ruled, plan.kept) if plan.kept.any() else None


def _scaled(logits: Tensor, temperature: Tensor | None) -> Tensor:
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if temperature is None else logits / temperature.to(logits.dtype)


def _pick(
    logits: Tensor, temperature: Tensor | None, uniform: Tensor, entropy: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Token ids [N, 1], their log-probabilities [N, 1], and the entropies [N] if wanted."""
    scaled = _scaled(logits, temperature)
    drawn = _weights(scaled, entropy)
    token = _search(drawn.weight, uniform[:, None])
    token = token.clamp_(max=logits.shape[-1] - 1)  # only reached by NaN, reported by the engine
    return token, drawn.logp(scaled, token), drawn.entropy


@functools.cache
def _compiled_pick() -> Callable[..., tuple[Tensor, Tensor, Tensor | None]]:
    """`_pick` compiled for a GPU, which then reads the logits about three times, not ten."""
    compiled: Callable[..., tuple[Tensor, Tensor, Tensor | None]] = torch.compile(_pick)

    def pick(
        logits: Tensor, temperature: Tensor | None, uniform: Tensor, entropy: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        for each in (logits, temperature, uniform):
            if each is not None:
                torch._dynamo.maybe_mark_dynamic(each, 0)
        return compiled(logits, temperature, uniform, entropy)

    return pick


def _with_greedy(
    ruled: Tensor, greedy: Tensor, token: Tensor, logp: Tensor
) -> tuple[Tensor, Tensor]:
    """The same tokens, but the likeliest one with certainty in greedy rows."""
    most, likeliest = ruled.max(-1, keepdim=True)
    # 0 times a logit is 0, but NaN where no token was allowed
    return torch.where(greedy, likeliest, token), torch.where(greedy, 0 * most, logp)


def _kept(ruled: Tensor, wanted: np.ndarray) -> Sets:
    """The sets that the rules leave, for the rows that want them."""
    place = np.flatnonzero(wanted)
    rows = torch.from_numpy(place).to(ruled.device)
    inside = ruled[rows] > -torch.inf  # False for NaN logits
    number = inside.sum(-1)
    inside &= (number < ruled.shape[-1])[:, None]  # the whole vocabulary is written as empty
    ids = inside.nonzero()[:, 1].to(torch.int32).cpu().numpy()
    ends = inside.sum(-1).cumsum(0).cpu().numpy()
    found = np.full(len(wanted), b"", dtype=object)
    for row, each in zip(place.tolist(), np.split(ids, ends[:-1]), strict=True):
        found[row] = each.tobytes()
    return found


class Weights(NamedTuple):
    """Weights of the tokens [N, V], relative to the likeliest."""

    weight: Tensor
    most: Tensor  # [N, 1] the largest logit
    log_total: Tensor  # [N, 1] of all weights; NaN if no logit is finite
    entropy: Tensor | None  # [N], if wanted

    def logp(self, logits: Tensor, token: Tensor) -> Tensor:
        """Log-probabilities [N, 1]. Large logits are subtracted first, or rounding would show."""
        return logits.gather(-1, token) - self.most - self.log_total


def _weights(logits: Tensor, entropy: bool) -> Weights:
    most = logits.amax(-1, keepdim=True)
    shifted = logits - most
    weight = shifted.exp() if entropy else shifted.exp_()
    total = weight.sum(-1, keepdim=True)
    log_total = total.log()
    found = None
    if entropy:  # log sum_j w_j - sum_j w_j log w_j / sum_j w_j; a forbidden token has weight 0
        inner = shifted.clamp_(min=LEAST).mul_(weight).sum(-1, keepdim=True)
        found = (log_total - inner / total)[:, 0].clamp_(min=0)
    return Weights(weight, most, log_total, found)


def _search(weight: Tensor, uniform_N1: Tensor) -> Tensor:
    """Token ids [N, 1]: the first whose running sum exceeds the share `uniform` of the total.

    In a large vocabulary the sum runs over blocks first, then inside one: float64 throughout would
    take most of the time of a draw.
    """
    num, size = weight.shape
    if size <= SMALL:
        cdf = weight.cumsum(-1, dtype=torch.float64)
        return torch.searchsorted(cdf, uniform_N1 * cdf[:, -1:], right=True)
    if more := -size % BLOCK:
        weight = torch.nn.functional.pad(weight, (0, more))
    blocks = weight.view(num, -1, BLOCK)
    ends = blocks.sum(-1).cumsum(-1, dtype=torch.float64)
    aim = uniform_N1 * ends[:, -1:]
    block = torch.searchsorted(ends, aim, right=True).clamp_(max=blocks.shape[1] - 1)
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp_(min=0)), 0)
    chosen = blocks.gather(1, block[..., None].expand(-1, -1, BLOCK))[:, 0]
    inside = chosen.cumsum(-1, dtype=torch.float64).add_(before)
    # Rounding may put the aim after the block: then take the last token with any weight.
    last = torch.searchsorted(inside, inside[:, -1:].contiguous())
    return block * BLOCK + torch.minimum(torch.searchsorted(inside, aim, right=True), last)


def _apply_rules(scaled: Tensor, plan: Plan) -> Tensor:
    if not plan.rules:
        return scaled
    ruled = scaled.clone()
    for rows, rules in plan.rules:
        part = scaled[rows]
        for rule in rules:
            try:
                after = rule(part)
            except UserError as error:
                plan.refused[rules] = str(error)
                after = torch.full_like(part, torch.nan)
            if after.shape != part.shape:
                raise UserError(
                    f"rule {rule!r} returned shape {tuple(after.shape)} for logits of shape "
                    f"{tuple(part.shape)}; it must return the same shape"
                )
            part = after
        ruled[rows] = part
    return ruled


def _add_statistics(record: Tensor, token: Tensor, logits: Tensor, plan: Plan) -> None:
    if plan.model is not None and not plan.plain:
        scaled = _scaled(logits, plan.temperature)
        own = _weights(scaled[plan.model], entropy=True)
        assert own.entropy is not None
        logp = own.logp(scaled[plan.model], token[plan.model])
        record[plan.model, LOGP_MODEL] = logp[:, 0].double()
        record[plan.model, ENTROPY] = own.entropy.double()
    if plan.top is not None:
        values, ids = _scaled(logits[plan.top], None).log_softmax(-1).topk(plan.num_top, dim=-1)
        record[plan.top, TOP:] = torch.stack([ids.double(), values.double()], dim=-1).flatten(1)
