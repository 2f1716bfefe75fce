import math
from functools import partial

import pytest
import torch
from builders import run
from fakes.services import FakeScoring, FakeServices
from models import save_model
from ragged import ragged_batch

from strop.parts.probe.score_plausible_tokens import ScorePlausibleTokens
from strop.support.errors import UserError
from strop.training.learner.models import load
from strop.training.learner.policy import Policy


def test_log_probability_among_the_plausible_tokens(tmp_path):
    """Beside the model's own probabilities, at the sampling temperature."""
    policy = Policy(load(str(save_model(tmp_path)), dtype="float64").model)
    batch = ragged_batch(3)
    batch = batch.set(id_T=torch.randint(0, 20, (batch.size("T"),), generator=torch.manual_seed(0)))
    batch = type(batch)({n: c for n, c in batch.columns.items() if n != "sequence_T"})
    services = FakeServices(scoring=FakeScoring(partial(policy.columns, temperature=0.7)))
    found_T = run(ScorePlausibleTokens(0.2), batch, services=services).value
    plain_T = run(ScorePlausibleTokens(0.0), batch, services=services).value
    cut = 0
    for row in range(batch.size("B")):
        tokens = (batch["rollout_T"] == row).nonzero().squeeze(1)
        with torch.no_grad():
            logits = policy.model(input_ids=batch["id_T"][tokens][None]).logits[0] / 0.7
        p_LV = logits.softmax(-1)
        for place, t in enumerate(tokens.tolist()):
            if not batch["mask_T"][t]:
                continue
            p_V, own = p_LV[place - 1], int(batch["id_T"][t])
            stays_V = p_V > 0.2 * p_V.max()
            within = math.log(float(p_V[own] / p_V[stays_V].sum()))
            cut += not stays_V[own]
            expected = within if stays_V[own] else -1e4
            assert found_T[t].item() == pytest.approx(expected, rel=1e-6)
            assert plain_T[t].item() == pytest.approx(math.log(float(p_V[own])), rel=1e-6)
    assert 0 < cut < int(batch["mask_T"].sum())


def test_all_is_asked_of_the_policy_of_now_in_one_pass():
    scoring = FakeScoring(lambda batch, names: {names[0]: batch["logp_old_T"]})
    batch = ragged_batch(1)
    found = run(ScorePlausibleTokens(), batch, services=FakeServices(scoring=scoring)).value
    assert found.equal(batch["logp_old_T"])
    assert scoring.scored == [(batch.size("B"), "current")]
    with pytest.raises(UserError, match=r"score_plausible_tokens\.kappa"):
        ScorePlausibleTokens(1.0)
