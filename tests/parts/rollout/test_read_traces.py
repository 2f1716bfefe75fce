"""A draw of a prompt gives its recorded rollouts; unknown log-probabilities are computed here."""

import math

import pytest
import torch
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeScoring, FakeServices, FakeTexts, rolled_out

from strop.batch.batch import Batch
from strop.method.part import Draw
from strop.parts.rollout import substitutes
from strop.parts.rollout.base import RolledOut
from strop.parts.rollout.branch_at_uncertainty import BranchAtUncertainty
from strop.parts.rollout.play_turns import PlayTurns
from strop.parts.rollout.read_traces import ReadTraces
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.support.errors import UserError
from strop.traces.records import Rollout, TurnRecord

KNOWN = TurnRecord((1, 2), (3, 4), (-0.5, -0.25), versions=(2, 2))
UNKNOWN = TurnRecord((1, 2), (4, 4, 3))
NEXT = TurnRecord((1, 2, 3, 4, 5), (6,), (-1.0,))
ROLLOUTS = {
    7: [Rollout((KNOWN, NEXT), 1.0), Rollout((UNKNOWN,), 0.0), Rollout((KNOWN,), None)],
    9: [Rollout((UNKNOWN, TurnRecord((5, 6), (3,))), 1.0)],
}


def scores(batch: Batch, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """-0.1 times the token, for what is scored here."""
    return {name: -0.1 * batch["id_T"].double() for name in names}


def read(*draws: Draw, part: ReadTraces | None = None) -> tuple[RolledOut, FakeServices]:
    texts = FakeTexts(pieces=dict(enumerate("abcdefgh")), rollouts=ROLLOUTS)
    services = FakeServices(texts, scoring=FakeScoring(scores))
    engine = TableEngine(by_last_token({}))
    rng = torch.Generator().manual_seed(0)
    return rolled_out(part or ReadTraces(), draws, engine, services, rng), services


def test_a_draw_gives_its_whole_group() -> None:
    (batch, state, discarded, metrics), services = read(Draw(9, 4), Draw(7, 2, draw=1))
    assert state is None
    assert discarded == 0
    assert batch["uid_P"].tolist() == [9, 7]
    assert batch["draw_P"].tolist() == [0, 1]
    assert batch["group_B"].tolist() == [0, 1, 1, 1]
    assert batch["reward_K"].tolist() == [0, 1, 0, 1, 0, 0]
    assert len({*batch["rollout_uid_B"].tolist()}) == 4
    assert metrics["turns/contexts"] == 5 / 4
    assert metrics["turns/fork"] == metrics["turns/clean"] == 0.5
    assert services.log.logged["turns"][int(batch["rollout_uid_B"][3])][0]["action"] == "de"


def test_what_nobody_knows_is_scored_by_the_policy_of_now() -> None:
    (batch, _, _, metrics), services = read(Draw(7, 1))
    logp_T = batch["logp_behavior_T"][batch["mask_T"]]
    expected = [-0.5, -0.25, -1.0, -0.4, -0.4, -0.3, -0.5, -0.25]
    torch.testing.assert_close(logp_T, torch.tensor(expected))
    torch.testing.assert_close(batch["logp_sampler_T"][batch["mask_T"]], torch.tensor(expected))
    assert metrics["turns/scored_here"] == pytest.approx(3 / 8)
    assert services.scoring.scored == [(1, "current")]  # the one rollout that needs it
    version_T = batch["version_T"][batch["mask_T"]]
    assert version_T.tolist() == [2, 2, -1, -1, -1, -1, 2, 2]
    assert (batch["logp_behavior_T"][~batch["mask_T"]] == 0).all()


def test_nothing_is_scored_where_all_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROLLOUTS, 7, [Rollout((KNOWN,), 1.0)])
    (_, _, _, metrics), services = read(Draw(7, 1))
    assert metrics["turns/scored_here"] == 0
    assert services.scoring.scored == []


def test_the_threshold_of_a_fork_is_an_option() -> None:
    (batch, _, _, _), _ = read(Draw(7, 1), part=ReadTraces(fork_threshold=1))
    assert batch.contexts()[1] == 3
    with pytest.raises(UserError, match="fork_threshold must be at least 1"):
        ReadTraces(fork_threshold=0)


def test_it_stands_in_for_what_samples_or_plays() -> None:
    plain = SampleIndependently(max_tokens=5, temperature=0.7)
    assert substitutes.reading(plain) == ReadTraces(temperature=0.7)
    assert substitutes.reading(PlayTurns()) == ReadTraces()
    own = ReadTraces(fork_threshold=3)
    assert substitutes.reading(own) is own
    assert substitutes.reading(BranchAtUncertainty()) is None
    assert substitutes.plain(own) == SampleIndependently()


def test_entropies_of_nobody_stay_unknown() -> None:
    (batch, _, _, _), _ = read(Draw(9, 1))
    assert all(map(math.isnan, batch["entropy_behavior_T"][batch["mask_T"]].tolist()))
