import re

import pytest
import torch
from builders import flat_batch, run
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeGrading, FakeSampling, FakeServices, FakeTexts, rolled_out

from strop.engines.base import Answer, Event, Request
from strop.method.part import Draw
from strop.parts.reward.reward_reused_skills import RewardReusedSkills
from strop.parts.rollout._library import calls
from strop.parts.rollout.answer_with_skills import AnswerWithSkills, Chain
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.parts.sampling.chain_similar_prompts import ChainSimilarPrompts
from strop.recipes.grpo import grpo
from strop.recipes.sage_skill_chain import sage_skill_chain
from strop.support.errors import UserError

# Names a and b; "a=" defines, "a(" calls; token 0 ends.
PIECES = {0: "", 1: "a", 2: "b", 3: "=", 4: "(", 5: ";", 6: "\n"}
TABLE = {
    0: (1, 0, 0, 0, 0, 0, 0), 1: (0.1, 0, 0, 0.5, 0.4, 0, 0), 2: (0.1, 0, 0, 0.5, 0.4, 0, 0),
    3: (0.4, 0.3, 0.2, 0, 0, 0.1, 0), 4: (0.5, 0.2, 0.3, 0, 0, 0, 0),
    5: (0, 0.5, 0.5, 0, 0, 0, 0),
}  # fmt: skip
PROMPTS = {5: (5, 5), 6: (3, 5), 7: (4, 5)}


ROOM = 7  # for two skills it is too narrow


class Texts(FakeTexts):
    def reworded_ids(self, uid, words, answer):
        said = words.replace("{answer}", self.decode(answer))
        before, _, after = said.partition("{prompt}")
        ids = (*self.encode(before), *self.prompt_ids(uid), *self.encode(after))
        return ids if len(ids) <= ROOM else ()


def outcome(ids):
    return float(3 in ids or len(ids) > 3)


PART = AnswerWithSkills(skill="(?P<name>[ab])=", words="{library};{prompt}")
DRAWS = (Draw(5, 30, {"chain": (6, 7)}), Draw(6, 20, {"chain": (5,)}), Draw(7, 2))


def sampled(part=PART, draws=DRAWS, table=TABLE):
    services = FakeServices(Texts(PROMPTS, PIECES), FakeGrading(outcome),
                            FakeSampling(answer_tokens=6))  # fmt: skip
    return rolled_out(
        part,
        draws,
        TableEngine(by_last_token(table), context_length=100),
        services,
        torch.Generator().manual_seed(3),
    ).batch


def rows_of(batch):
    """(stage, chain, prompt's uid, given, said, called, skilful) of every row."""
    texts = FakeTexts(pieces=PIECES)
    ids = torch.split(batch["id_T"], batch["size_B"].tolist())
    masks = torch.split(batch["mask_T"], batch["size_B"].tolist())
    given = [texts.decode(a[~m].tolist()) for a, m in zip(ids, masks, strict=True)]
    said = [texts.decode(a[m].tolist()) for a, m in zip(ids, masks, strict=True)]
    names = ("stage_B", "chain_B", "called_B", "skilful_B")
    stage, chain, called, skilful = (batch[name].tolist() for name in names)
    uids = batch["uid_P"][batch["group_B"]].tolist()
    lengths = [int(m.sum()) for m in masks]
    right = [("=" in s) or n > 3 for s, n in zip(said, lengths, strict=True)]
    return list(zip(stage, chain, uids, given, said, called, skilful, right, strict=True))


def test_chains_carry_what_worked():
    rows = rows_of(sampled())
    by_chain = {}
    for row in rows:
        by_chain.setdefault(row[1], []).append(row)
    assert sorted(len(chain) for chain in by_chain.values()) == [1] * 2 + [2] * 20 + [3] * 30
    prompts = {uid: "".join(PIECES[id] for id in ids) for uid, ids in PROMPTS.items()}
    used = alone = 0
    for chain in by_chain.values():
        library = {}
        assert [row[0] for row in chain] == list(range(len(chain)))
        for stage, _, uid, given, said, called, skilful, right in chain:
            text = "\n".join(f"{name}=" for name in library)
            with_it = f"{text};{prompts[uid]}" if library else prompts[uid]
            assert given == (with_it if len(with_it) <= ROOM else prompts[uid])
            alone += bool(library) and given == prompts[uid]
            defined = [said[n - 1] for n in range(1, len(said)) if said[n] == "="]
            rest = said
            for name in "ab":
                rest = rest.replace(f"{name}=", "")
            flags = {library[n] for n in library if n not in defined and f"{n}(" in rest}
            assert called == sum(2**of for of in flags)
            assert skilful == bool(defined or flags)
            used += bool(flags)
            if right:
                library |= dict.fromkeys(defined, stage)
    assert used > 3
    assert alone > 3


def test_each_task_is_compared_with_the_other_chains_at_that_task():
    batch = sampled()
    groups = batch["group_B"].tolist()
    stages, uids = batch["stage_B"].tolist(), batch["uid_P"].tolist()
    sizes = {}
    for row, group in enumerate(groups):
        sizes.setdefault((group, uids[group], stages[row]), []).append(row)
    assert [(uid, stage, len(rows)) for (_, uid, stage), rows in sizes.items()] == [
        (5, 0, 30), (6, 1, 30), (7, 2, 30), (6, 0, 20), (5, 1, 20), (7, 0, 2)
    ]  # fmt: skip
    keys = list(zip(uids, batch["draw_P"].tolist(), strict=True))
    assert len(set(keys)) == len(keys)


def test_chains_of_a_refill_meet_no_group_of_other_chains():
    """Two draws of prompts 5 and 6 lead to prompt 7, from the same place of their rounds."""
    first = sampled(draws=(Draw(5, 4, {"chain": (7,)}, draw=1), Draw(6, 3, {"chain": (7,)})))
    refill = sampled(draws=(Draw(6, 2, {"chain": (7,)}, draw=1), Draw(5, 2, {"chain": (7,)})))
    batch = first.join(refill)
    sizes = torch.bincount(batch["group_B"]).tolist()
    assert sizes == [4, 4, 3, 3, 2, 2, 2, 2]


def test_the_first_tasks_are_plain_samples_and_a_chain_of_one_is_nothing_else():
    ours = sampled()
    ours = ours.keep(ours["stage_B"] == 0)
    theirs = sampled(SampleIndependently())
    for name in theirs.columns:
        if name != "draw_P":
            assert ours[name].equal(theirs[name]), name
    assert sage_skill_chain(M=1) == grpo(normalize_std=False)


def test_a_failed_request_ends_its_chain_alone():
    # after "(" no token can be drawn
    by_chain = {}
    for row in rows_of(sampled(table={**TABLE, 4: (0,) * 7})):
        by_chain.setdefault(row[1], []).append(row)
    sizes = [3] * 30 + [2] * 20 + [1] * 2  # of the chains, by the draws
    for chain, size in zip(by_chain.values(), sizes, strict=True):
        whole = [not said.endswith("(") for _, _, _, _, said, *_ in chain]
        assert all(whole[:-1])
        assert len(chain) == size or not whole[-1]
    assert {len(chain) for chain in list(by_chain.values())[:30]} == {1, 2, 3}


def test_functions_of_python_are_skills():
    code = (
        "def add(a, b):\n    return a + b\n\ndef twice(x):\n    return add(x, x)\nprint(twice(2))"
    )

    found = {m["name"]: m[0] for m in re.finditer(AnswerWithSkills().skill, code)}
    assert list(found) == ["add", "twice"]
    assert found["twice"] == "def twice(x):\n    return add(x, x)\n"
    assert calls("print(twice(2))", "twice")
    assert not calls("print(twice(2))", "ice")


def rewarded(outcomes, called=(0, 1), part=None, skilful=(True, True)):
    batch = flat_batch(
        [1, 1], reward_B=outcomes, outcome_B=outcomes, stage_B=torch.tensor([0, 1]),
        chain_B=torch.tensor([9, 9]), called_B=torch.tensor(called),
        skilful_B=torch.tensor(skilful),
    )  # fmt: skip
    return run(part or RewardReusedSkills(bonus=0.25), batch)


def test_worked_example_of_the_bonus():
    # (1, 1) with reuse: 1 + bonus; (1, 0): none; (1, 1) without reuse: 1
    assert rewarded([1.0, 1.0]).value.tolist() == [1.25, 1.25]
    assert rewarded([1.0, 0.0]).value.tolist() == [1.0, 0.0]
    assert rewarded([1.0, 1.0], called=(0, 0)).value.tolist() == [1.0, 1.0]
    alone = RewardReusedSkills(0.25, pays_author=False)
    assert rewarded([1.0, 1.0], part=alone).value.tolist() == [1.0, 1.25]
    found = rewarded([1.0, 0.0], skilful=(False, True))
    assert found.value.tolist() == [-1.0, 0.0]
    assert found.metrics == {
        "skills/frac_used": 1.0, "skills/frac_reused": 0.0, "skills/frac_missing": 0.5
    }  # fmt: skip


def test_authors_of_longer_chains_and_unscored_answers():
    ones = [1.0] * 6
    batch = flat_batch(
        [1] * 6, reward_B=ones, outcome_B=ones, stage_B=torch.tensor([0, 1, 2] * 2),
        chain_B=torch.tensor([4, 4, 4, 8, 8, 8]), called_B=torch.tensor([0, 0, 1, 0, 1, 2]),
        skilful_B=torch.ones(6, dtype=torch.bool),
    ).set(scored_B=torch.tensor([True, True, True, True, False, True]))  # fmt: skip
    # in the second chain the second answer is unscored: it used nothing and wrote nothing
    found = run(RewardReusedSkills(0.5), batch)
    assert found.value.tolist() == [1.5, 1.0, 1.5, 1.0, 1.0, 1.5]
    # three scored answers after a first one, two of which call a skill that is right
    assert found.metrics == {
        "skills/frac_used": 2 / 3, "skills/frac_reused": 2 / 3, "skills/frac_missing": 0.0
    }  # fmt: skip


def test_chains_are_of_one_scenario():
    rows = {uid: {"scenario": "xy"[uid % 2]} for uid in range(6)}
    services = FakeServices(FakeTexts(rows=rows))
    part, draws = ChainSimilarPrompts("scenario", 3), (Draw(0, 4), Draw(3, 4))

    def chains(part, seed=0):
        rng = torch.Generator().manual_seed(seed)
        given = {"draws": draws, "pool": tuple(range(6)), "texts": services.texts, "rng": rng}
        return [draw.columns["chain"] for draw in part(**given)]

    assert [sorted(chain) for chain in chains(part)] == [[2, 4], [1, 5]]
    assert len({tuple(chains(part, seed)) for seed in range(20)}) > 1
    assert [len(chain) for chain in chains(ChainSimilarPrompts("", 3))] == [2, 2]
    assert [len(chain) for chain in chains(ChainSimilarPrompts("scenario", 9))] == [2, 2]
    with pytest.raises(UserError, match="no family: give every row"):
        chains(ChainSimilarPrompts("family"))


def test_bad_options_are_refused():
    for fields in ({"skill": "("}, {"skill": "def"}, {"call": "call"}):
        with pytest.raises(UserError, match=r"rollout\.skill"):
            AnswerWithSkills(**fields)
    with pytest.raises(UserError, match="bonus"):
        RewardReusedSkills(bonus=-1.0)


def test_a_skill_that_is_its_name_is_called_where_it_stands():
    part = AnswerWithSkills(skill=r"(?P<name>\d\*\d)", call="{name}")
    chain = Chain(0, Draw(5, 1), (1, 2), {"3*5": ("3*5", 0)})
    texts = FakeTexts(pieces=dict(enumerate("0123456789*+")))
    for said, called in (("3*5+7", 1), ("7+2*4", 0), ("13*5", 0)):
        answer = Answer(Request((1,), 9), (Event(0, texts.encode(said), (), 0),))
        part._note(chain, 1, answer, 0.0, texts)
        assert chain.rows[-1][1] == called
    assert list(chain.skills) == ["3*5"]  # nothing of a wrong answer stays
