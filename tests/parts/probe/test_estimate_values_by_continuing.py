import pytest
import torch
from builders import flat_batch, run
from fakes.engine import TableEngine, by_last_token
from fakes.services import over_table

from strop.parts.probe.estimate_values_by_continuing import EstimateValuesByContinuing
from strop.support.errors import UserError
from strop.training.settings import config

# After 1 or 2 the answer ends (0), goes on to the other one, or repeats.
TABLE = {0: (1, 0, 0), 1: (0.5, 0, 0.5), 2: (0.25, 0.25, 0.5)}


def has_two(ids):
    return float(2 in ids)


def batch_of(answers, prompts=((1,), (1,)), limit=8, uids=(5, 5)):
    """Rollouts of one group each, a prompt before each answer."""
    sizes = [len(p) + len(a) for p, a in zip(prompts, answers, strict=True)]
    ids = [id for p, a in zip(prompts, answers, strict=True) for id in (*p, *a)]
    mask = [
        m for p, a in zip(prompts, answers, strict=True) for m in [False] * len(p) + [True] * len(a)
    ]
    return flat_batch(
        sizes, range(len(sizes)), id_T=ids, mask_T=mask, max_length=limit, uid_P=list(uids)
    )


def estimate(part, batch, cuts, services, seed=0):
    cut_T = torch.zeros(batch.size("T"), dtype=torch.bool)
    cut_T[cuts] = True
    rng = torch.Generator().manual_seed(seed)
    return run(part, batch.set(cut_T=cut_T), services=services, rng=rng).value


def test_value_is_the_chance_of_success_from_there():
    batch = batch_of([(1, 1, 0), (2, 1, 0)], limit=80)
    services = over_table(TableEngine(by_last_token(TABLE)), {5: (1,)}, has_two)
    found = estimate(EstimateValuesByContinuing(400), batch, [1, 6], services)
    # before the first token: 1 ends or goes to 2, half each; after the answer has a 2: certain
    assert found[1].item() == pytest.approx(0.5, abs=0.05)
    assert found[6].item() == 1.0
    assert found.isnan().sum() == 6
    assert len(services.grading.graded) == 800
    assert all(ids[0] == 2 for ids in services.grading.graded[400:])


def test_equal_beginnings_of_a_prompt_share_their_continuations():
    batch = batch_of([(2, 2, 0), (2, 1, 0)])
    services = over_table(TableEngine(by_last_token(TABLE)), {5: (1,)}, lambda ids: len(ids))
    found = estimate(EstimateValuesByContinuing(3), batch, [1, 2, 5, 6, 7], services)
    assert found[1] == found[5]
    assert found[2] == found[6]
    assert len(services.sampling.asked) == 3 * 3
    assert len({request.seed for request in services.sampling.asked}) == 9
    assert [len(request.ids) for request in services.sampling.asked[::3]] == [1, 2, 3]
    assert [request.max_tokens for request in services.sampling.asked[::3]] == [8, 7, 6]
    other = batch_of([(2, 2, 0), (2, 1, 0)], uids=(5, 6))
    services = over_table(TableEngine(by_last_token(TABLE)), {5: (1,), 6: (1,)}, has_two)
    estimate(EstimateValuesByContinuing(3), other, [1, 2, 5, 6], services)
    assert len(services.sampling.asked) == 4 * 3


def test_cut_off_and_unscored_continuations():
    batch = batch_of([(2, 2, 0), (2, 1, 0)], limit=2)
    endless = TableEngine(by_last_token({1: (0, 1, 0), 2: (0, 0, 1)}))
    services = over_table(endless, {5: (1,)}, lambda ids: 1.0)
    found = estimate(EstimateValuesByContinuing(2), batch, [1], services)
    assert found[1] == 0.0
    found = estimate(EstimateValuesByContinuing(2, unfinished=-0.5), batch, [1], services)
    assert found[1] == -0.5
    stops = TableEngine(by_last_token({1: (0.5, 0.5, 0)}))
    some = over_table(stops, {5: (1,)}, lambda ids: 0.75 if len(ids) % 2 else None)
    assert estimate(EstimateValuesByContinuing(40), batch_of([(1, 0), (1, 0)], limit=50),
                    [1], some)[1] == 0.75  # fmt: skip
    none = over_table(stops, {5: (1,)}, lambda ids: None)
    assert (
        estimate(EstimateValuesByContinuing(4), batch_of([(1, 0), (1, 0)]), [1], none).isnan().all()
    )


def test_without_a_cut_nothing_is_generated():
    services = over_table(TableEngine(by_last_token(TABLE)), {5: (1,)})
    found = estimate(EstimateValuesByContinuing(), batch_of([(1, 0), (2, 0)]), [], services)
    assert found.isnan().all()
    assert services.sampling.asked == []


@pytest.mark.parametrize("recipe", ["spo_chain", "turning_point_grpo"])
@pytest.mark.parametrize("task", ["corridor", "agent:my_agent.py:play", "traces:live"])
def test_episodes_are_refused_before_training(recipe, task):
    run_of = config.make({"recipe": recipe, "data": {"task": task}})
    with pytest.raises(UserError, match=r"continuing and \w+ do not go together"):
        run_of.build()
