import json
import math
import random
from collections import Counter
from unittest import mock

import pytest
import torch
from builders import flat_batch, run, stages
from fakes.services import FakeServices, FakeTexts
from models import Lab, tokenizer
from runs import Runner

from strop.data.prompt_rows import Pack, PromptRows
from strop.environments.tasks import Task
from strop.method.part import Draw
from strop.parts.reward.reward_agreement_in_sets import RewardAgreementInSets
from strop.parts.sampling.add_paraphrases import AddParaphrases
from strop.parts.sampling.chain_similar_prompts import ChainSimilarPrompts
from strop.recipes.grpo import grpo
from strop.recipes.ps_grpo import ps_grpo
from strop.support.errors import UserError
from strop.training.services.texts import Limits, RunTexts
from strop.training.step import train_step


def services_of(texts=(), sets=()):
    rows = {100 + n: {"set": name} for n, name in enumerate(sets)}
    return FakeServices(FakeTexts(rows=rows, said=texts))


def rewards(texts, groups, sets, reward_B, **fields):
    batch = flat_batch((1,) * len(texts), groups, reward_B=reward_B)
    batch = batch.set(uid_P=batch["uid_P"] + 100)
    part = RewardAgreementInSets(**fields)
    outcome = run(part, batch, services=services_of(texts, sets))
    return outcome.value, batch.set(reward_B=outcome.value), outcome.metrics


def test_worked_example():
    """Three wordings, two answers each, compared exactly; advantages by 1/n."""
    found, batch, metrics = rewards(
        ["a", "b", "a", "a", "a", "c"], (0, 0, 1, 1, 2, 2), ("q",) * 3, [0.0] * 6,
        label=0.0, similarity="exact",
    )  # fmt: skip
    assert found.tolist() == pytest.approx([0.75, 0, 0.5, 0.5, 0.75, 0])
    assert metrics["agreement/mean"] == pytest.approx(2.5 / 6)
    advantages = stages(ps_grpo(), batch)["advantage_B"].tolist()
    assert advantages == pytest.approx([1, -1, 0, 0, 1, -1], abs=1e-5)


def test_weights_sets_and_edges():
    """Sets do not mix; a set of one has no agreement; an unscored rollout takes no part."""
    texts = ["a", "a", "a", "b"]
    found, *_ = rewards(texts, (0, 1, 2, 3), ("q", "q", "r", "q"), [1.0, 0, 1, 1],
                        agreement=2.0, label=0.5, similarity="exact")  # fmt: skip
    assert found.tolist() == pytest.approx([1.5, 1.0, 0.5, 0.5])
    batch = flat_batch((1,) * 3, (0, 1, 1), reward_B=[1.0, math.nan, 1.0])
    batch = batch.set(uid_P=batch["uid_P"] + 100, scored_B=torch.tensor([True, False, True]))
    outcome = run(RewardAgreementInSets(similarity="exact"), batch,
                  services=services_of(["a", "a", "b"], ("q", "q")))  # fmt: skip
    assert outcome.value.tolist()[::2] == [1.0, 1.0]
    assert math.isnan(outcome.value[1])


def test_without_agreement_it_is_grpo():
    found, batch, _ = rewards(["a"] * 4, (0, 0, 1, 1), ("q", "q"), [1.0, 0, 1, 1], agreement=0.0)
    assert found.tolist() == [1, 0, 1, 1]
    plain = stages(grpo(std="biased"), batch)["advantage_B"]
    assert stages(ps_grpo(), batch)["advantage_B"].equal(plain)


@pytest.mark.parametrize(
    ("answer", "reference", "value"),
    [
        ("the cat sat", "the cat sat", 1.0),
        ("the cat ran", "the cat sat", math.sqrt(2 / 3 * 1 / 2)),
        ("new cat sat", "the cat sat", math.sqrt(2 / 3 * 1 / 2)),  # its first word is its own
        ("the the the", "the cat sat", 0.0),  # one word in common, no pair
        ("the cat", "the cat sat", math.exp(1 - 3 / 2)),  # shorter than the reference
        ("cat", "cat", 1.0),
        ("cat", "dog", 0.0),
        ("", "", 1.0),
        ("", "dog", 0.0),
    ],
)
def test_likeness_of_words_and_pairs(answer, reference, value):
    found, *_ = rewards([answer, reference], (0, 1), ("q", "q"), [0.0, 0.0], label=0.0)
    assert float(found[0]) == pytest.approx(value)


def likeness(answer, reference):
    """The similarity of two texts with words, gram by gram."""
    logs = []
    for size in (1, 2):
        own, theirs = (
            Counter(tuple(words[i : i + size]) for i in range(len(words) - size + 1))
            for words in (answer.split(), reference.split())
        )
        if own:
            shared = sum((own & theirs).values())
            logs.append(math.log(shared / sum(own.values())) if shared else -math.inf)
    brevity = min(0.0, 1 - len(reference.split()) / len(answer.split()))
    return math.exp(sum(logs) / len(logs) + brevity)


def test_matches_slow_loop():
    """Words that come again and again, prompts drawn twice, sets that lie apart."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices("abcd", k=rng.randint(1, 9))) for _ in range(40)]
    prompts, sets = [rng.randrange(7) for _ in texts], ("q", "r", "q", "q", "s", "r", "q")
    scored = [rng.random() < 0.9 for _ in texts]
    groups = list(range(len(texts)))  # one rollout each, some of one prompt
    batch = flat_batch((1,) * len(texts), groups, reward_B=[0.0] * len(texts))
    batch = batch.set(uid_P=torch.tensor(prompts) + 100, scored_B=torch.tensor(scored))
    outcome = run(RewardAgreementInSets(), batch, services=services_of(texts, sets))
    expected = []
    for i, prompt in enumerate(prompts):
        alike = [
            likeness(texts[i], texts[j])
            for j, other in enumerate(prompts)
            if scored[i] and scored[j] and other != prompt and sets[other] == sets[prompt]
        ]
        expected.append(sum(alike) / max(len(alike), 1))
    assert outcome.value.tolist() == pytest.approx(expected, rel=1e-6)
    assert len(set(expected)) > 20


def test_whole_sets_are_drawn_and_none_twice():
    texts = services_of(sets=("q", "r", "q", "r", "s")).texts
    draws = (Draw(102, 4), Draw(100, 4), Draw(104, 4))
    found = AddParaphrases()(draws, (100, 101, 102, 103, 104), texts)
    assert [(draw.uid, draw.num_rollouts) for draw in found] == [(102, 4), (100, 4), (104, 4)]
    found = AddParaphrases()((Draw(101, 2),), (100, 101, 102, 103, 104), texts)
    assert [draw.uid for draw in found] == [101, 103]
    with pytest.raises(UserError, match="has no topic"):
        AddParaphrases("topic")(draws, (100, 101, 102, 103, 104), texts)


def test_a_run_reads_the_sets_of_its_prompts_once(monkeypatch):
    """Also of more prompts than are cached as rows, of which each step would read all again."""
    monkeypatch.setattr("strop.training.services.texts.MOST_PROMPTS", 8)
    pack = Pack(0)
    pack.begin("data.jsonl", "prompt")
    for number in range(40):
        pack.add(str(number), {"set": number // 2}, "")
    rows = PromptRows(pack)
    pack.prompt = mock.Mock(wraps=pack.prompt)
    texts = RunTexts(Task("made up", rows, [], [], ()), tokenizer(), Limits(8, 8, 40, 64, 8))
    pool, rng = tuple(rows.uids), torch.Generator()
    for uid in (4, 9, 30):
        found = AddParaphrases()((Draw(uid, 2),), pool, texts)
        assert [draw.uid for draw in found] == [uid, uid ^ 1]
        (chained,) = ChainSimilarPrompts("set")((Draw(uid, 2),), pool, texts, rng)
        assert chained.columns["chain"] == (uid ^ 1,)
    assert pack.prompt.call_count == 40


def test_a_run_draws_both_wordings(tmp_path):
    lab = Lab.make(tmp_path)
    rows = [{"prompt": f"{n}+1:", "answer": "1", "set": n // 2} for n in range(12)]
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run_ = Runner().start(lab.raw("ps_grpo", reward="even", data={"validation_size": 0}),
                          tmp_path / "run")  # fmt: skip
    stepped = train_step(run_.world, run_.algorithm, {}, 1)
    run_.close()
    rows = [run_.world.services.texts.row(uid) for uid in stepped.batch["uid_P"].tolist()]
    sets = [row["set"] for row in rows]
    assert all(sets.count(each) == 2 for each in sets)
    assert 0 <= stepped.metrics["agreement/mean"] <= 1
