"""A recipe's step on rollouts of another trainer, in pieces; which recipes can be hosted."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from strop import functional as F
from strop.catalogue import catalogue
from strop.integrations.hosted import WEIGHT, Hosted, Rollouts, Update, merged
from strop.integrations.hosting import (
    TINKER,
    TRL,
    VERL_ESTIMATOR,
    VERL_LOSS,
    check,
    hosted,
    why_no_half,
    why_not,
)
from strop.method import notation, reading
from strop.method.part import Use
from strop.parts.control.step_back_to_anchor import StepBackToAnchor
from strop.support.errors import UserError
from strop.training.settings import config

HOSTED = [how for entry in catalogue.recipes() if (how := hosted(entry.name, TRL)[0])]
NUM, WIDTH = 16, 9
ALL = torch.arange(NUM)


def rollouts(seed: int = 0, **changes: Any) -> tuple[Rollouts, dict[str, Tensor]]:
    """Four groups of four with rewards of 0 and 1, both in each, and the policy as it is now."""
    rng = torch.Generator().manual_seed(seed)

    def some() -> Tensor:
        return torch.rand(NUM, WIDTH, generator=rng, dtype=torch.float64)

    mask_BL = torch.arange(WIDTH)[None] < torch.randint(2, WIDTH + 1, (NUM, 1), generator=rng)
    old = -0.1 - 2 * some()
    columns = {
        "logp_old_T": old, "entropy_old_T": some() + 0.1, "logp_ref_T": old + 0.3 * some(),
        "logp_behavior_T": old + 0.1 * some(), "logp_sampler_T": old + 0.1 * some(),
        "entropy_behavior_T": some() + 0.1,
    }  # fmt: skip
    reward_B = (torch.rand(NUM, generator=rng) < 0.5).float()
    reward_B[0::4], reward_B[1::4] = 1.0, 0.0
    given: dict[str, Any] = {
        "id_BL": torch.randint(3, 20, (NUM, WIDTH), generator=rng), "mask_BL": mask_BL,
        "group_B": ALL // 4, "uid_B": ALL // 4 + 7, "truncated_B": mask_BL.all(1),
        "reward_BM": reward_B[:, None], "weights": [1.0], "max_length": WIDTH, "columns": columns,
    }  # fmt: skip
    now = {"logp_T": old + 0.2 * some(), "entropy_T": some() + 0.1}
    return Rollouts(**(given | changes)), {n: c.requires_grad_() for n, c in now.items()}


def gradients(loss: Tensor, now: dict[str, Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(now.values())))


@pytest.mark.parametrize("how", HOSTED)
def test_cut_into_passes(how: str) -> None:
    """In any order and pieces; also where the loss must have seen all rows before."""
    given, now = rollouts()
    mask_BL = given.mask_BL

    def started() -> Update:
        return Hosted(notation.recipe(how), 0).begin(1, 10, given).update(ALL, 0)

    whole = started().loss(ALL, mask_BL, now)
    order = torch.randperm(NUM, generator=torch.Generator().manual_seed(1))
    update = started()
    if update.sees_all:
        still = {name: column[order].detach() for name, column in now.items()}
        update.measure(order, mask_BL[order], still)
    cut = [
        update.loss(rows, mask_BL[rows], {name: column[rows] for name, column in now.items()})
        for rows in order.split(5)
    ]
    total = torch.stack(cut).sum() + update.measured
    torch.testing.assert_close(total, whole, rtol=1e-10, atol=1e-12)
    for found, wanted in zip(gradients(total, now), gradients(whole, now), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_what_stands_outside_the_mask_never_matters() -> None:
    given, now = rollouts()
    update = Hosted(notation.recipe("grpo"), 0).begin(1, 10, given).update(ALL, 0)
    whole = update.loss(ALL, given.mask_BL, now)
    for void in (torch.nan, -torch.inf):
        other = {name: torch.where(given.mask_BL, column, void) for name, column in now.items()}
        assert update.loss(ALL, given.mask_BL, other) == whole


def test_two_updates_are_over_their_own_rows() -> None:
    """token-mean: each half divides by its own tokens, whatever the other has."""
    given, now = rollouts()
    step = Hosted(notation.recipe("grpo(aggregation='token-mean')"), 0).begin(1, 10, given)
    for half in (ALL[:8], ALL[8:]):
        update = step.update(half, 0)
        share_T = update.prepared["policy:share_T"][update.prepared["mask_T"]]
        assert share_T.sum() == pytest.approx(1.0)
        assert share_T[0] == pytest.approx(1 / float(given.mask_BL[half].sum()))
        other = update.loss(ALL, given.mask_BL, now)
        torch.testing.assert_close(
            other, update.loss(half, given.mask_BL[half], {n: c[half] for n, c in now.items()})
        )


def test_dropped_groups_take_no_part() -> None:
    """All of the first group are right: it is dropped, has advantage 0 and no gradient."""
    given, now = rollouts()
    reward_BM = given.reward_BM.clone()
    reward_BM[:4] = 1.0
    given, now = rollouts(reward_BM=reward_BM)
    step = Hosted(notation.recipe("dapo(refill=False)"), 0).begin(1, 10, given)
    assert step.batch["given_B"].tolist() == list(range(4, NUM))
    assert step.advantages(NUM)[:4] == [0.0] * 4
    assert all(step.advantages(NUM)[4:])
    assert step.metrics["data/dropped/uniform_group"] == 4
    update = step.update(ALL, 0)
    found = gradients(update.loss(ALL, given.mask_BL, now), now)[0]
    assert not found[:4].any()
    assert found[4:].any()
    idle = step.update(ALL[:4], 0)
    assert idle.terms == ()
    assert idle.loss(ALL[:4], given.mask_BL[:4], {n: c[:4] for n, c in now.items()}) == 0


def test_weights_of_the_host_multiply_the_terms_of_the_advantage() -> None:
    """Twice the weight on one rollout: twice its policy loss, and the same penalty."""
    weight_BL = torch.ones(NUM, WIDTH, dtype=torch.float64)
    weight_BL[3] = 2.0
    given, now = rollouts()
    heavier, _ = rollouts(columns={**given.columns, WEIGHT: weight_BL})
    recipe = "grpo(beta=0.1, aggregation='token-mean')"
    plain = Hosted(notation.recipe(recipe), 0).begin(1, 10, given).update(ALL, 0)
    weighted = Hosted(notation.recipe(recipe), 0).begin(1, 10, heavier).update(ALL, 0)
    for update in (plain, weighted):
        update.loss(ALL, given.mask_BL, now)
    assert float(weighted.tally.losses["kl"]) == pytest.approx(float(plain.tally.losses["kl"]))
    own = Hosted(notation.recipe(recipe), 0).begin(1, 10, given).update(ALL, 0)
    third = own.loss(ALL[3:4], given.mask_BL[3:4], {n: c[3:4] for n, c in now.items()})
    share = float(own.tally.losses["policy"])
    gained = float(weighted.tally.losses["policy"]) - float(plain.tally.losses["policy"])
    assert gained == pytest.approx(share)
    assert third.isfinite()


def test_turns_begin_behind_what_a_tool_said() -> None:
    mask_BL = torch.zeros(NUM, WIDTH, dtype=torch.bool)
    mask_BL[:, 0:2] = True
    mask_BL[0, 4:6] = True  # a tool spoke at 2 and 3
    given, _ = rollouts(mask_BL=mask_BL)
    batch = given.batch(1, 10, 0)
    assert batch.size("K") == NUM + 1
    own = batch["turn_T"][batch["rollout_T"] == 0]
    assert own.tolist() == [0, 0, 1, 1, 1, 1]
    assert batch["index_K"][:3].tolist() == [0, 1, 0]


def test_what_cuts_have_left_is_not_known_to_a_host() -> None:
    for mask, allowed in (("ignore", True), ("weigh", False), ("renormalise", False)):
        part = "rollout.sample_independently"
        knobs = {f"{part}.top_p": 0.9, f"{part}.sampling_mask": mask}
        cut = notation.recipe("grpo").with_knobs(knobs)
        assert (not why_not(cut, TRL)) == allowed


def test_equal_prompts_are_draws_of_one() -> None:
    given, _ = rollouts(uid_B=torch.tensor([5, 6, 5, 5]).repeat_interleave(4))
    batch = given.batch(3, 10, 0)
    assert batch["uid_P"].tolist() == [5, 6, 5, 5]
    assert batch["draw_P"].tolist() == [0, 0, 1, 2]
    assert set(batch["version_T"].tolist()) == {2}


def test_state_goes_on_from_step_to_step() -> None:
    """The controller's coefficient rises by 0.01 a step, also from a saved state."""
    method = notation.recipe("adaptive_entropy_coef(target=9.0, delta=0.01)")
    host, applied = Hosted(method, 0), []
    for number in (1, 2, 3):
        if number == 3:
            host = Hosted(method, 0, dict(host.state))
        step = host.begin(number, 10, rollouts(number)[0])
        applied.append(step.algorithm.paths()["terms.entropy.coef"])
        said = host.end(step, {})
        assert said["entropy_control/coef"] == pytest.approx(0.01 * number)
    assert applied == pytest.approx([0.0, 0.01, 0.02])


@pytest.mark.parametrize("how", ["gdpo", "entropic"])  # while it writes, and when it learns
def test_the_host_is_given_each_metric_of_a_part(how: str) -> None:
    given, now = rollouts()
    host = Hosted(notation.recipe(how), 0)
    step = host.begin(1, 10, given)
    update, first = step.update(ALL, 0), step.metrics
    update.loss(ALL, given.mask_BL, now)
    last = host.end(step, update.tally.means())
    assert step.chains.metrics_by
    assert {*step.chains.metrics_by} <= {*first, *last}


def test_schedules_follow_the_step() -> None:
    host = Hosted(notation.recipe("grpo").each(_scheduled), 0)
    found = [
        host.algorithm(step, 10).paths()["terms.policy.objective.clip_high"] for step in (1, 5)
    ]
    assert found == pytest.approx([0.22, 0.3])


def _scheduled(algorithm: Any) -> Any:
    value = reading.value("linear(0.2, 0.4)")
    return algorithm.with_knobs({"terms.policy.objective.clip_high": value})


def test_unscored_rollouts_and_weights_of_rewards() -> None:
    reward_BM = torch.rand(NUM, 2, generator=torch.Generator().manual_seed(3))
    reward_BM[2] = torch.nan
    reward_BM[5, 0] = torch.nan
    given, _ = rollouts(reward_BM=reward_BM, weights=[1.0, 0.5])
    step = Hosted(notation.recipe("dr_grpo"), 0).begin(1, 10, given)
    assert not step.batch["scored_B"][2]
    assert step.advantages(NUM)[2] == 0
    wanted = reward_BM[4:8].nan_to_num() @ torch.tensor([1.0, 0.5])
    found = torch.tensor(step.advantages(NUM)[4:8])
    torch.testing.assert_close(found, wanted - wanted.mean(), rtol=1e-5, atol=1e-6)


def test_rewards_apart_with_their_weights() -> None:
    """gdpo: each reward is normalised in its group by itself, then weighed."""
    reward_BM = torch.rand(NUM, 2, generator=torch.Generator().manual_seed(3))
    given, _ = rollouts(reward_BM=reward_BM, weights=[1.0, 3.0])
    step = Hosted(notation.recipe("gdpo"), 0).begin(1, 10, given)
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3])
    wanted = F.advantages(
        "gdpo", reward_components=reward_BM, groups=groups, mask=given.mask_BL,
        reward_weights=torch.tensor([1.0, 3.0]).expand(NUM, 2),
    )  # fmt: skip
    torch.testing.assert_close(torch.tensor(step.advantages(NUM)), wanted[:, 0].float())


def test_tallies_add_up() -> None:
    given, now = rollouts()
    step = Hosted(notation.recipe("grpo"), 0).begin(1, 10, given)
    whole, update = step.update(ALL, 0), step.update(ALL, 0)
    whole.loss(ALL, given.mask_BL, now)
    other = step.update(ALL, 0)
    for half, part in ((ALL[:8], update), (ALL[8:], other)):
        part.loss(half, given.mask_BL[half], {n: c[half] for n, c in now.items()})
    both = merged([update.tally, other.tally])
    assert both.means() == pytest.approx(whole.tally.means())
    assert float(both.losses["policy"]) == pytest.approx(float(whole.tally.losses["policy"]))


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ("gae", "trains a critic"),
        ("vade", "chooses prompts by itself (draw_uncertain_prompts)"),
        ("drive", "chooses prompts by itself (draw_hardest_prompts)"),
        ("spo_tree", "samples in a way of its own (grow_segment_tree)"),
        ("sft", "learns from given answers (read_answers)"),
        ("gigpo", "plays episodes of an environment (play_turns)"),
        ("dapo", "requests further rollouts (drop_uniform_groups)"),
        ("remix", "needs stores (replay_rollouts)"),
        ("loop", "splits a step into updates in a way of its own (split_into_rollouts)"),
        ("rover", "reads mean_logp_T (regress_on_random_policy_value), which takes the whole "
                  "next-token distribution"),
        ("grpo(beta=0.1)", ""),
    ],
)  # fmt: skip
def test_reasons(recipe: str, reason: str) -> None:
    method = notation.recipe(recipe)
    assert why_not(method, TRL) == reason
    if reason:
        with pytest.raises(UserError, match="TRL cannot host this recipe: it "):
            check(method, TRL)


@pytest.mark.parametrize(
    ("recipe", "works"),
    [
        ("dapo", "dapo(refill=False) works"),
        ("dapo(clip_high=0.3)", "dapo(clip_high=0.3, refill=False) works"),
        ("loop", "works (docs/HOSTED.md lists all that do)"),
    ],
)
def test_a_refusal_names_what_would_work(recipe: str, works: str) -> None:
    with pytest.raises(UserError) as refused:
        check(notation.recipe(recipe), TRL, recipe)
    assert str(refused.value).endswith(works)
    with pytest.raises(UserError, match=r"docs/HOSTED\.md lists those that work"):
        check(notation.recipe("dapo"), TRL)  # a method that has no line


def test_halves_for_verl() -> None:
    def halves(recipe: str) -> tuple[str, str]:
        method = notation.recipe(recipe)
        return why_no_half(method, VERL_ESTIMATOR), why_no_half(method, VERL_LOSS)

    assert halves("clip_cov") == ("", "")
    assert halves("mc_grpo(beta=0.0)") == ("", "")
    assert halves("capo")[0].startswith("reads logp_old_T")
    assert halves("gvpo") == (
        "", "has averages that do not follow from verl's counts (average_per_prompt)",
    )  # fmt: skip
    assert halves("drive") == ("switches to another method during the run",) * 2
    assert halves("riskpo")[0] == "keeps state from step to step (weigh_lower_tail)"
    assert hosted("dapo", TRL) == ("dapo(refill=False)", "")


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ("entropy_bonus", "reads entropy_T (reward_entropy), which takes the whole"),
        ("entrocraft", "reads entropy_old_T (keep_inside_entropy_band), which Tinker does not"),
        ("ares_aepo", "reads entropy_behavior_T (mark_open_windows), and Tinker's sampler has no"),
        ("hapo", "needs 'rules' (sample_at_entropy_temperature), and Tinker's sampler has no"),
        ("gkd", "reads logq_TV (penalise_full_kl_to_reference), which takes the whole"),
        ("vcpo", "needs scoring (measure_rollout_gradients)"),
        ("ppo_clip", "trains a critic"),
        ("brorl", "gives its reference the policy's weights (renew_reference)"),
    ],
)
def test_what_log_probabilities_of_tokens_do_not_give(recipe: str, why: str) -> None:
    assert why_not(notation.recipe(recipe), TINKER).startswith(why)


def test_all_but_the_model_is_strops_own_on_tinkers_api() -> None:
    """Turns, chosen prompts, given answers, refilled batches, a reference, several updates."""
    for recipe in ("gigpo", "prompt_gdro", "dpo", "dapo", "grpo(beta=0.1)", "gspo", "rloo"):
        assert why_not(notation.recipe(recipe), TINKER) == ""
    path = "rollout.sample_independently.temperature"
    cool = notation.recipe("grpo").each(lambda each: each.with_knobs({path: 0.7}))
    assert why_not(cool, TINKER).startswith("samples at temperature 0.7")
    anchored = dataclasses.replace(notation.recipe("grpo"), control=(Use(StepBackToAnchor()),))
    assert why_not(anchored, TINKER).startswith("keeps a copy of the policy's weights")
    with pytest.raises(UserError, match=r"Tinker cannot host .*; grpo, which it changes, works"):
        config.make({"recipe": "entropy_bonus", "engine": {"kind": "tinker"}}).build()
