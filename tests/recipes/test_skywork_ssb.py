import dataclasses
import json

import pytest
import torch
from builders import pushed, ragged_batch, run, stages
from models import Lab, save_model, without_times
from runs import Runner
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from strop import functional
from strop.method import notation
from strop.method import part as parts
from strop.method.check import check
from strop.recipes.grpo import grpo
from strop.recipes.skywork_ssb import skywork_ssb
from strop.support.errors import UserError


def noted(algorithm, batch):
    """The batch after the parts of the reward stage that come after the scores."""
    for use in algorithm.reward[1:]:
        batch = parts.write(batch, use, parts.call(use, batch))
    return batch


def test_worked_example():
    # |A| = [1.5, .5, .5, .5] is what the rewards [1, 0, 0, 0] give
    given = {"rewards": torch.tensor([1.0, 0, 0, 0]).double(), "groups": torch.zeros(4).long()}
    found = functional.advantages("skywork_ssb", **given)
    assert found.tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert (found.abs() / found.abs().sum()).tolist() == pytest.approx([1 / 2, *[1 / 6] * 3])
    kept = functional.advantages("skywork_ssb", **given, made_advantage=torch.arange(4.0).double())
    assert kept.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_without_a_store_it_is_grpo():
    assert skywork_ssb(share=0, filter_answers=0) == grpo()
    parent = grpo(std="biased", beta=0.1)
    assert skywork_ssb(share=0, filter_answers=0, std="biased", beta=0.1) == parent
    filtered = dataclasses.replace(skywork_ssb(share=0), sampling=())
    assert filtered == dataclasses.replace(grpo(), sampling=())


def test_settings_that_the_noted_advantage_would_replace_are_refused():
    path, stages_of_both = "divide_by_group_std.eps", ("reward", "advantage")
    for stage in stages_of_both:
        with pytest.raises(UserError, match=r"divide_by_group_std is another: give reward.divide"):
            check(skywork_ssb().with_knobs({f"{stage}.{path}": 1000.0}))
    check(skywork_ssb().with_knobs({f"{stage}.{path}": 1000.0 for stage in stages_of_both}))


def test_prompts_without_any_advantage_leave_before_the_first_step(tmp_path):
    lab, runner = Lab.make(tmp_path), Runner()
    rewards = tmp_path / "split.py"
    rewards.write_text(
        "def split(prompts, completions, answer, **columns):\n"
        "    return [float(int(a) % 3) if int(a) % 2 else float(len(c) % 2)\n"
        "            for c, a in zip(completions, answer)]\n",
        encoding="utf-8",
    )
    raw = lab.raw("skywork_ssb", reward="digits", training={"steps": 1, "save_every": 0})
    raw["reward"] = {"functions": [f"{rewards}:split"]}
    run = runner.whole(raw, tmp_path / "run")
    kept = run.state["sampling.draw_in_shuffled_order"]["kept"]
    pool = run.world.pool
    # Odd ones get one reward whatever is answered, so A = 0; the others by the answer's length.
    even = {uid for uid in pool if int(run.world.services.texts.row(uid)["answer"]) % 2 == 0}
    assert set(kept) <= even
    assert len(kept) > len(even) / 2


@pytest.mark.parametrize("options", [{}, {"std": "biased"}, {"normalize_std": False},
                                     {"singleton": "zero", "eps": 1e-2}])  # fmt: skip
def test_new_rows_have_the_advantage_of_grpo_among_all_their_peers(options):
    batch, ours = ragged_batch(3), skywork_ssb(capacity=50, share=3.0, **options)
    whole = noted(ours, batch)
    expected = stages(grpo(**options), batch)
    torch.testing.assert_close(whole["made_advantage_B"], expected["advantage_B"])
    part = ours.curation[0].part
    drawn = run(part, whole, state=part.init(), rng=torch.Generator().manual_seed(0)).value.add
    learnt = stages(ours, drawn)
    index_B = torch.tensor([whole["rollout_uid_B"].tolist().index(uid)
                            for uid in drawn["rollout_uid_B"].tolist()])  # fmt: skip
    assert len(set(index_B.tolist())) < len(index_B)  # some come twice
    torch.testing.assert_close(learnt["advantage_B"], expected["advantage_B"][index_B])
    policys = learnt["mask_T"]
    spread_T = learnt["advantage_B"][learnt["rollout_T"]]
    torch.testing.assert_close(learnt["advantage_T"][policys], spread_T[policys])


def test_ratio_is_to_the_policy_that_drew_the_token():
    batch = stages(grpo(), ragged_batch(4, groups=(3, 4)))
    theirs = pushed(grpo(), batch)[1]["logp_T"]
    same = batch.set(logp_sampler_T=batch["logp_old_T"], logp_old_T=batch["logp_old_T"] - 0.3)
    torch.testing.assert_close(pushed(skywork_ssb(), same)[1]["logp_T"], theirs)
    torch.testing.assert_close(pushed(skywork_ssb(of_sampler=False), batch)[1]["logp_T"], theirs)


def test_every_parameter_arrives():
    part = skywork_ssb(share=0.25, capacity=9, exponent=0.5, floor=0.1).curation[0].part
    assert (part.share, part.capacity, part.exponent, part.floor) == (0.25, 9, 0.5, 0.1)
    assert len(skywork_ssb(normalize_std=False).reward) == 3


def test_a_run_learns_from_earlier_rollouts_with_their_advantages(tmp_path):
    lab, runner = Lab.make(tmp_path), Runner()
    raw = lab.raw("skywork_ssb", reward="even",
                  training={"steps": 6, "save_every": 0, "rollouts_every": 0})  # fmt: skip
    raw["algorithm"] |= {"sampling.num_prompts": 3, "sampling.num_rollouts": 4,
                         "curation.share": 1.0}  # fmt: skip
    runner.whole(raw, tmp_path / "run")
    text = (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8")
    lines = [line for line in map(json.loads, text.splitlines()) if "replay/stored" in line]
    assert len(lines) == 6
    assert all(line["num_rollouts"] in (0, 12) for line in lines)
    assert any(line["replay/age_mean"] > 0 for line in lines)
    assert any(0 < line["replay/effective"] < 1 for line in lines)
    for line in lines:
        if line["num_rollouts"]:
            assert line["advantage/abs_mean"] > 0
            assert line["groups/frac_rollouts_with_gradient"] == 1


def test_options_by_their_paths():
    paths = notation.recipe("skywork_ssb").paths()
    assert paths["curation.replay_by_advantage.share"] == 0.5


RULE_AND_FORM = """
def rule(completions, answer, **columns):
    return [float(text.startswith(a)) for text, a in zip(completions, answer)]


def form(completions, **columns):
    return [float(text[:1].isdigit()) for text in completions]
"""


def test_rule_form_and_preference_model_are_added_after_a_phase_on_pairs(tmp_path):
    lab, model = Lab.make(tmp_path), tmp_path / "preferences"
    AutoTokenizer.from_pretrained(lab.model).save_pretrained(model)
    config = AutoConfig.from_pretrained(save_model(tmp_path / "other"), num_labels=1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(model)
    rows = [{"prompt": f"{n}+{3 * n % 7}:", "answer": str(n), "chosen": str(n), "rejected": "-"}
            for n in range(10)]  # fmt: skip
    pairs, rewards = tmp_path / "pairs.jsonl", tmp_path / "two.py"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rewards.write_text(RULE_AND_FORM, encoding="utf-8")
    ours = "skywork_ssb(filter_answers=0, share=0, num_prompts=2, num_rollouts=4)"
    method = f"until(1, skywork_mpo(num_prompts=2)) @ mpo | {ours} @ ssb"
    raw = lab.raw(method, training={"steps": 3, "save_every": 0, "rollouts_every": 0})
    raw["data"], raw["algorithm"] = {"files": [str(pairs)]}, {"rollout.max_tokens": 6}
    raw["reward"] = {"functions": [f"{rewards}:rule", f"{rewards}:form", f"model:{model}"]}
    raw["reward"]["timeout_seconds"] = 60.0
    Runner().whole(raw, tmp_path / "run")
    first, *later = without_times(tmp_path / "run")
    assert (first["phase"], "rewards/rule/mean" in first) == (1, False)
    assert first["loss/imitate"] > 0
    assert [line["phase"] for line in later] == [2, 2]
    for line in later:
        means = [line[f"rewards/{name}/mean"] for name in ("rule", "form", "preferences")]
        assert line["reward"] == pytest.approx(sum(means), abs=1e-6)
        assert all(abs(mean) > 0 for mean in means[1:])
