"""Speculative decoding: several tokens of a row in one pass, with drafts from other rows' text.

A draft is the token that followed the same few tokens before. One pass computes the logits after
the newest token and after each draft, and every position draws as usual, with the random number of
the request's seed and that position. A row keeps its draws up to the first one that differs from
the draft. This is rejection sampling from a draft with probability 1: token x is accepted with
probability p(x), and replaced otherwise by a draw from p without x. Because the random numbers are
the same as without drafts, so are the tokens, whatever was drafted.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from strop.engines.local.causal import CachedModel
from strop.engines.local.continuations import Continuations
from strop.engines.local.ragged import Ragged, lay_out
from strop.engines.local.slots import RECENT, Slots
from strop.engines.sampling import LOGP, TOKEN, Plan, Sets, draw, make_plan, uniforms

# The fixed costs of a step, in units of the cost of one more token: per step, per row, and per row
# of a step with drafts, whose attention is padded. Measured on a CPU with the shipped models
# (benchmarks/speculation.py); a GPU computes many tokens in the time of one.
STEP, ROW, PADDED = 64.0, 1.0, 0.3
STEP_ELSEWHERE = 1024.0


class Drawn(NamedTuple):
    """The tokens that a pass has drawn, one entry each; all on the host."""

    plan: Plan
    row: np.ndarray  # the token's row
    column: np.ndarray  # its index among the row's new tokens
    records: np.ndarray  # its record
    stops: np.ndarray  # whether it ends its request
    fails: np.ndarray  # whether no token could be drawn
    sets: Sets | None = None  # the sets that its rules kept

    @property
    def token(self) -> np.ndarray:
        return self.records[:, TOKEN].astype(np.int64)


class Speculation:
    """Draws for the rows of `slots`, with up to `most` drafts per row and step.

    Drafts need no extra room: a row has no more of them than the cache has places for, and none
    beyond its limit. Rows with stop strings have none.

    drafted, accepted: numbers of tokens so far.
    """

    def __init__(
        self,
        model: CachedModel,
        slots: Slots,
        most: int,
        plain: Callable[[int], tuple[Plan, np.ndarray]],
    ) -> None:
        self.model, self.slots, self.most, self.plain = model, slots, most, plain
        self.known = Continuations()
        self.drafted = self.accepted = 0
        self.step_cost = STEP if model.device.type == "cpu" else STEP_ELSEWHERE

    def draw(self, number: int) -> tuple[Plan, np.ndarray, np.ndarray]:
        """Draw at least one token for each of the first rows; returns the plan, and which rows have
        stopped and failed.
        """
        draft, chance = self._drafts(number)
        drafts = (chance > 0).sum(axis=1)
        if not drafts.any():
            return self._without(number)
        ragged, token_T, drawn = self._pass(draft, drafts)
        if drawn.fails.any():
            # After a draft the model's logits may not be finite, which spoils the positions before
            # it too. Only rows that fail without drafts should fail.
            self._erase(ragged)
            return self._without(number)
        new = np.full((number, ragged.width), -1)
        new[ragged.row, ragged.column] = drawn.token
        right = np.zeros_like(new, dtype=bool)
        right[ragged.row, ragged.column] = ~drawn.stops
        right[:, :-1] &= (new[:, :-1] == draft) & (chance > 0)
        right[:, -1] = False
        kept = 1 + np.logical_and.accumulate(right, axis=1).sum(axis=1)
        self._count(int(drafts.sum()), int((kept - 1).sum()), float(chance.sum()))
        self._remember(drawn, new, kept)
        newest = np.concatenate([[0], (drafts + 1).cumsum()[:-1]]) + kept - 1
        self.slots.write_several(ragged, kept, token_T, drawn.records, drawn.sets)
        return drawn.plan, drawn.stops[newest], drawn.fails[newest]

    def _without(self, number: int) -> tuple[Plan, np.ndarray, np.ndarray]:
        """A step in which no row has a draft."""
        plan, records = self.plain(number)
        row = np.arange(number)
        drawn = Drawn(plan, row, np.zeros_like(row), records, *plan.ends(records))
        self._count(0, 0, 0.0)
        self._remember(drawn, drawn.token[:, None], np.ones_like(row))
        return plan, drawn.stops, drawn.fails

    def _drafts(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [N, K] and their chances, 0 where there is none; empty if drafts do not pay."""
        table, places = self.slots.table[:number], self.slots.cache.places
        length = table["length"]
        room = np.minimum(table["limit"], places) - length - 1
        most = np.where(table["strings"], 0, np.clip(room, 0, self.most))
        worth = self.step_cost / number + ROW + 1  # the cost of a token without drafts
        token, chance = self.known.foretell(table["recent"], table["group"], most, 1 / worth)
        if (chance * worth - (chance > 0)).sum() <= PADDED * number:
            return token[:, :0], chance[:, :0]
        return token, chance

    def _pass(self, draft: np.ndarray, drafts: np.ndarray) -> tuple[Ragged, Tensor, Drawn]:
        """Compute the newest token and the drafts of each row, and draw after each of them."""
        slots, number = self.slots, len(drafts)
        table, device = slots.table[:number], self.model.device
        ragged = lay_out(1 + drafts, device)
        row, column = ragged.row, ragged.column
        given = np.concatenate([table["recent"][:, -1:], draft], axis=1)[row, column]
        length = table["length"]
        uniform = uniforms(table["seed"][row], (length[row] + column).astype(np.uint64))
        numbers = torch.from_numpy(np.stack([given, uniform.view(np.int64)])).to(device)
        first = torch.from_numpy(length - 1).to(device)
        bands = slots.bands.of(length + drafts)
        own = slots.weights(number) if self.model.routes else ()
        with self.model.under([own[each] for each in row.tolist()] if own else (), dim=1):
            logits = self.model.decode_several(numbers[0], ragged, first, bands)
        requests, like = slots.ways(number)
        plan = make_plan(requests, self.model.vocab_size, device, like[row])
        token_T, record, sets = draw(logits, plan, numbers[1].view(torch.float64))
        records = record.cpu().numpy()
        return ragged, token_T, Drawn(plan, row, column, records, *plan.ends(records), sets)

    def _remember(self, drawn: Drawn, new: np.ndarray, kept: np.ndarray) -> None:
        """Enter the drawn tokens in the table, and update each row's recent tokens."""
        table = self.slots.table[: len(kept)]
        text = np.concatenate([table["recent"], new], axis=1)
        # A token that ends a request is not learnt: the drafts after it would be wasted.
        useful = ~drawn.stops & ~drawn.fails
        learnt = np.flatnonzero(useful & (drawn.column < kept[drawn.row]))
        row, column = drawn.row[learnt], drawn.column[learnt]
        before = text[row[:, None], column[:, None] + np.arange(RECENT)]
        chance = np.exp(drawn.records[learnt, LOGP])
        self.known.learn(before, table["group"][row], drawn.token[learnt], chance)
        every = np.arange(len(kept))[:, None]
        table["recent"] = text[every, kept[:, None] + np.arange(RECENT)]

    def _erase(self, ragged: Ragged) -> None:
        """Clear the drafts' keys and values in the cache."""
        lengths = torch.from_numpy(self.slots.table["length"][ragged.row]).to(self.model.device)
        drafts = ragged.column_T > 0
        places = (lengths - 1 + ragged.column_T)[drafts]
        self.slots.cache.clear(ragged.row_T[drafts], places)

    def _count(self, drafted: int, accepted: int, foretold: float) -> None:
        self.drafted += drafted
        self.accepted += accepted
        self.known.judge(foretold, accepted)
