"""Episodes over a table of next-token probabilities, and the expected contents of their batches."""

import itertools
import math

import pytest
import torch
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeEpisodes, FakeSampling, FakeServices, FakeTexts, rolled_out

from strop.engines.asynchronous import asynchronous
from strop.environments.base import Environment, Observation

# Tokens: 0 ends an action, 1 and 2 are actions, a to d (3 to 6) are shown.
LETTERS = {letter: 3 + n for n, letter in enumerate("abcd")}
PIECES = dict(enumerate(["", "1", "2", "a", "b", "c", "d"]))
TABLE = {
    0: (1, 0, 0, 0, 0, 0, 0),
    1: (0.6, 0.2, 0.2, 0, 0, 0, 0),
    2: (0.3, 0.3, 0.4, 0, 0, 0, 0),
    3: (0.1, 0.5, 0.4, 0, 0, 0, 0),
    4: (0, 0.9, 0.1, 0, 0, 0, 0),
    5: (0.2, 0.3, 0.5, 0, 0, 0, 0),
    6: (0.05, 0.05, 0.9, 0, 0, 0, 0),
}  # fmt: skip


class Walk(Environment):
    """Sums up digits; over at 6 or more, which is worth 1; shows how far it is. 0 is not valid."""

    max_turns, max_tokens = 4, 3

    def reset(self, seed):
        self.sum = seed % 2
        return Observation("a", state=f"at {self.sum}")

    def step(self, action):
        self.sum += sum(map(int, action))
        done = self.sum >= 6
        return Observation("" if done else "bcd"[self.sum % 3], reward=float(done), done=done,
                           state=f"at {self.sum}", valid=bool(action))  # fmt: skip


def services_over(engine, kind=Walk, letters=LETTERS, pieces=PIECES, context=100):
    """The services of a run whose prompts are the token 3."""
    sampling = FakeSampling(engine, context_tokens=context)
    texts = FakeTexts(dict.fromkeys(range(20), (3,)), pieces)
    return FakeServices(texts, sampling=sampling, episodes=FakeEpisodes(kind, letters))


def played(part, draws, engine=None, services=None, seed=0):
    """What a strategy comes to, its services, and its engine."""
    engine = engine or TableEngine(by_last_token(TABLE))
    services = services or services_over(engine)
    sizes = part.new_tokens(0, services.episodes.kind)
    services.sampling.answer_tokens, services.sampling.episode_tokens = sizes
    found = rolled_out(part, draws, engine, services, torch.Generator().manual_seed(seed))
    assert engine.rows == {}
    return found, services


def turns_of(batch, row):
    """(given, action) of every turn of a rollout, as lists of tokens."""
    found = []
    for turn in (batch["rollout_K"] == row).nonzero().squeeze(1).tolist():
        own_T = batch["turn_T"] == turn
        ids, mask_T = batch["id_T"][own_T], batch["mask_T"][own_T]
        assert mask_T.tolist() == sorted(mask_T.tolist())
        found.append((ids[~mask_T].tolist(), ids[mask_T].tolist()))
    return found


def assert_drawn_by_its_own_seed(batch, row, table=None, turns=None, most=3):
    """The actions of some turns are what the engine draws behind all that stands before them."""
    table, before = table or TABLE, []
    for number, (given, action) in enumerate(turns_of(batch, row)):
        before += given
        if turns is None or number in turns:
            request = {"ids": tuple(before), "seed": int(batch["rollout_uid_B"][row])}
            assert action == drawn(table, most, **request), (row, number)
        before += action


def drawn(table, most, **request):
    """What an engine over the table draws."""
    made = FakeSampling().request(request["ids"], most, request["seed"])
    (answer,) = asynchronous(TableEngine(by_last_token(table))).sample([made])
    return list(answer.ids)


def assert_log_probabilities(batch, row, table=None, void=()):
    """Those of actions are the table's, and void at these places among the policy's tokens."""
    table, place = table or TABLE, 0
    rows = (batch["rollout_T"] == row).nonzero().squeeze(1).tolist()
    for one, at in itertools.pairwise(rows):
        if not batch["mask_T"][at]:
            continue
        for name in ("logp_behavior_T", "logp_sampler_T"):
            if place in void:
                assert math.isnan(batch[name][at]), (row, place)
            else:
                p = table[int(batch["id_T"][one])][int(batch["id_T"][at])]
                assert batch[name][at].item() == pytest.approx(math.log(p), abs=1e-5)
        place += 1
