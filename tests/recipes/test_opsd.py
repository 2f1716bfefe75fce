"""`opsd`: the reference reads the right answer before it judges the policy's tokens."""

from types import SimpleNamespace

import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages
from fakes.services import FakeTexts
from short_runs import make_lab, teacher_of

from strop.batch import segments
from strop.method.check import check
from strop.parts.probe.show_answer_to_reference import ShowAnswerToReference
from strop.recipes.gkd import gkd
from strop.recipes.on_policy_distillation import on_policy_distillation
from strop.recipes.opsd import opsd
from strop.support.errors import UserError
from strop.training.learner.policy import kept_of
from strop.training.learner.reference_prompts import reprompted
from strop.training.learner.step_models import StepModels, refresh

IDS = [3, 4, 13, 5, 6, 3, 5, 13, 7, 8, 4, 6, 9]  # three rollouts of 5, 5 and 3 tokens
MASK = [False, False, False, True, True, False, False, False, True, True, False, True, True]


def batch_of(prompts):
    """Two rollouts of one prompt and one of another, behind these prompts of the reference."""
    return flat_batch(
        (5, 5, 3), (0, 0, 1), id_T=IDS, mask_T=MASK, prompt_ref_PL=torch.tensor(prompts)
    ).set(logp_old_T=torch.zeros(13))


def test_worked_example():
    """The prompt of the first group is two tokens, that of the second stays its own."""
    read = reprompted(batch_of([[9, 8, -1], [-1, -1, -1]]))
    assert read["id_T"].tolist() == [9, 8, 5, 6, 9, 8, 7, 8, 4, 6, 9]
    assert read["mask_T"].tolist() == [False, False, True, True] * 2 + [False, True, True]
    assert read["size_B"].tolist() == [4, 4, 3]
    plain = batch_of([[9, 8, -1], [-1, -1, -1]]).narrow(torch.ones(13).bool())
    del plain.columns["prompt_ref_PL"]
    assert reprompted(plain) is plain


def test_the_reference_keeps_the_sets_of_the_policys_tokens():
    """They move with the tokens; of a prompt nothing was cut."""
    batch = batch_of([[9, 8, -1], [-1, -1, -1]])
    mask_T = batch["mask_T"]
    at_T, number_T = torch.where(mask_T, 2 * mask_T.cumsum(0) - 2, 0), 2 * mask_T.long()
    kept_ids = torch.arange(12, dtype=torch.int32)
    batch = batch.set(kept_at_T=at_T, num_kept_T=number_T, kept_ids=kept_ids)
    own, read = (kept_of(each, torch.device("cpu")) for each in (batch, reprompted(batch)))
    assert all(map(torch.equal, own, read))
    assert read.number_N.tolist() == [2] * 6
    assert reprompted(batch)["num_kept_T"].tolist() == [0, 0, 2, 2] * 2 + [0, 2, 2]


def test_matches_slow_loop_over_turns():
    """The prompt alone is another: what an environment says later stays, and so do turns."""
    batch = ragged_batch(4)
    longest = 3
    rng = torch.Generator().manual_seed(0)
    prompt_PL = torch.randint(0, 9, (batch.size("P"), longest), generator=rng)
    size_P = torch.randint(0, longest + 1, (batch.size("P"),), generator=rng)
    prompt_PL[torch.arange(longest) >= size_P[:, None]] = -1
    ids = torch.arange(batch.size("T"))
    read = reprompted(batch.set(id_T=ids, prompt_ref_PL=prompt_PL))
    wanted, turns = [], []
    for row in range(batch.size("B")):
        mine = (batch["rollout_T"] == row).nonzero().squeeze(1).tolist()
        started = next((n for n, t in enumerate(mine) if batch["mask_T"][t]), len(mine))
        shown = [x for x in prompt_PL[batch["group_B"][row]].tolist() if x >= 0]
        kept = mine[started:] if shown else mine
        wanted += [*shown, *kept]
        turns += [int(batch["turn_T"][mine[0]])] * len(shown) + batch["turn_T"][kept].tolist()
    assert read["id_T"].tolist() == wanted
    assert read["turn_T"].tolist() == turns
    assert int(read["mask_T"].sum()) == int(batch["mask_T"].sum())


def test_reductions():
    """Without the shown answer it is gkd, or the drawn token's credit."""
    assert opsd().terms == gkd().terms
    sampled, plain = opsd(sampled=True), on_policy_distillation(num_rollouts=1)
    assert (sampled.terms, sampled.advantage) == (plain.terms, plain.advantage)
    for algorithm in (opsd(), sampled):
        check(algorithm)
    batch = flat_batch((2,), logp_old_T=[-1.0, -2.0], logp_ref_T=[-0.5, -2.5], reward_B=[1.0])
    assert stages(sampled, batch)["advantage_T"].tolist() == [0.5, -0.5]


def behind(model, ids, first):
    """Log-probabilities of all tokens at the places from `first` on."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, first - 1 : -1].log_softmax(-1)


@pytest.mark.parametrize("share", ["on", "off"])
def test_the_reference_is_asked_behind_its_own_prompt(runner, lab, tmp_path, share):
    """Drawn tokens, whole distributions and divergences are those of plain passes."""
    raw = lab.raw("vopd", training={"save_every": 0, "share_prefixes": share})
    raw["model"] |= {"reference": str(teacher_of(lab)), "dtype": "float64"}
    world = runner.start(raw, tmp_path / "run").world
    batch = batch_of([[9, 8, -1], [-1, -1, -1]])
    models = StepModels(world.policy, 1.0, world.reference)
    found = refresh(batch, ("logp_ref_T", "kl_ref_old_T"), models)
    hidden = world.reference.hidden(batch)
    rows = iter(hidden @ world.reference.model.get_output_embeddings().weight.T)
    for own, asked, first, last in (
        (IDS[:5], [9, 8, 5, 6], 2, 3), (IDS[5:10], [9, 8, 7, 8], 2, 8), (IDS[10:], IDS[10:], 1, 11)
    ):  # fmt: skip
        logp = behind(world.reference.model, asked, first)
        logq = behind(world.policy.model, own, len(own) - 2)
        kl = (logq.exp() * (logq - logp)).sum(-1)
        for n in range(2):
            place = last + n
            token = float(logp[n, asked[first + n]])
            assert float(found["logp_ref_T"][place]) == pytest.approx(token, abs=1e-9)
            assert float(found["kl_ref_old_T"][place]) == pytest.approx(float(kl[n]), abs=1e-9)
            torch.testing.assert_close(next(rows).log_softmax(-1), logp[n])
    assert not found["logp_ref_T"][~batch["mask_T"]].any()


@pytest.mark.parametrize("sampled", [False, True])
def test_without_a_hint_there_is_nothing_to_learn(runner, tmp_path, sampled):
    """On policy: the reference is the policy, and every advantage is 0, of whole distributions up
    to rounding. With one there is.
    """
    lab = make_lab(tmp_path)
    for words, silent in (("{prompt}", True), ("={answer}+{prompt}", False)):
        raw = lab.raw(f"opsd(sampled={sampled}, words='{words}')", reward="even")
        raw["training"]["steps"] = 1
        watched = runner.go(runner.start(raw, tmp_path / words[1:7]))
        assert (watched.seen[-1]["grad_norm"] <= (0 if sampled else 1e-6)) == silent
        assert watched.seen[-1]["reference/shown"] == 1


def test_what_the_reference_is_shown(runner, tmp_path):
    """Words with the prompt and the row's answer; nothing without room or without an answer."""
    lab = make_lab(tmp_path)
    raw = lab.raw("opsd(words='={answer}+{prompt}')", reward="even")
    texts = runner.start(raw, tmp_path / "run").world.services.texts
    part = ShowAnswerToReference("={answer}+{prompt}")
    uids = torch.tensor([prompt.uid for prompt in texts.task.train[:3]])
    batch = flat_batch((1, 1, 1), (0, 1, 2), uid_P=uids)
    found = run(part, batch, services=SimpleNamespace(texts=texts))
    for row, uid in zip(found.value.tolist(), uids.tolist(), strict=True):
        said = texts.decode([token for token in row if token >= 0])
        assert said == f"={texts.row(uid)['answer']}+{texts.prompt(uid).prompt}"
    assert found.metrics == {"reference/shown": 1.0}
    long = ShowAnswerToReference("=" * 4000 + "{prompt}")
    found = run(long, batch, services=SimpleNamespace(texts=texts))
    assert (found.value.numel(), found.metrics) == (0, {"reference/shown": 0.0})


def test_parameters_of_the_other_form_are_refused():
    with pytest.raises(UserError, match=r"opsd\(sampled=True\): top_k=20 would have no effect"):
        opsd(sampled=True, top_k=20)


def test_answers_of_rows():
    """The first of several; none where the row has none; a column that is not there is told."""
    texts = FakeTexts({1: (5, 6), 2: (7,)}, {5: "a", 6: "b", 7: "c"},
                      rows={1: {"answer": ["c", "a"]}, 2: {"answer": None}})  # fmt: skip
    batch = flat_batch((1, 1), (0, 1), uid_P=[1, 2])
    services = SimpleNamespace(texts=texts)
    found = run(ShowAnswerToReference("{prompt}{answer}"), batch, services=services)
    assert found.value.tolist() == [[5, 6, 7], [-1, -1, -1]]
    assert found.metrics == {"reference/shown": 0.5}
    with pytest.raises(UserError, match="reads the column solution, which the prompts do not have"):
        run(ShowAnswerToReference("{answer}", "solution"), batch, services=services)
    assert run(ShowAnswerToReference("a"), batch, services=services).value.tolist() == [
        [5, 6, 5], [7, 5, -1]
    ]  # fmt: skip


def test_contexts_that_are_written_anew_are_refused():
    batch = batch_of([[9], [9]]).set(sequence_T=torch.tensor([0] * 3 + [1] * 10))
    assert segments.key_of(batch["rollout_T"], batch["sequence_T"])[1] > batch.size("B")
    with pytest.raises(UserError, match="writes the context of later turns"):
        reprompted(batch)
