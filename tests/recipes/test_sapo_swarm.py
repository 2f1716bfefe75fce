import json

import pytest
import torch
from builders import ragged_batch, run
from fakes.services import FakeGrading, FakeSampling, FakeServices, FakeTexts
from models import Lab, save_model, without_times
from runs import Runner

from strop import functional
from strop.method import notation
from strop.parts.curation._shared_groups import Shared, of_others, share
from strop.parts.curation.train_on_shared_groups import FOREIGN, TrainOnSharedGroups
from strop.recipes.grpo import grpo
from strop.recipes.sapo_swarm import sapo_swarm
from strop.support.errors import UserError
from strop.training.collect import asynchronous
from strop.training.parallel.ranks import Ranks, Several
from strop.training.settings import config

PIECES = {0: "", 5: "a", 6: "b", 7: "x", 8: "y", 9: "z"}  # 0 ends an answer
PROMPTS = {31: (7,), 32: (8,), 33: (9,)}
RIGHT, WRONG = ("a", True), ("bb", False)


def step_of(part, step=4, state=None, seed=0, sizes=(2, 2)):
    """A step of a node with two groups of two rollouts, of prompts 31 and 32; a is right."""
    num = sum(sizes)
    batch = ragged_batch(1, sizes, unscored=(), num_turns=(1, 1))
    batch = batch.take(torch.argsort(batch["group_B"], stable=True))
    ids_T = torch.where(batch["mask_T"], 5 + batch["id_T"] % 2, 7)
    batch = batch.set(
        id_T=ids_T, uid_P=torch.tensor([31, 32]), step=torch.tensor(step),
        reward_BM=torch.zeros(num, 1).double(), outcome_B=torch.zeros(num).double(),
    )  # fmt: skip
    texts = FakeTexts(PROMPTS, PIECES, special_ids=(0,))
    grading = FakeGrading(lambda ids: float(5 in ids))
    services = FakeServices(texts, grading, FakeSampling(answer_tokens=4))
    rng = torch.Generator().manual_seed(seed)
    found = run(part, batch, services=services, state=state or part.init(), rng=rng)
    return batch, found


def other(folder, *groups, step=3, node="other"):
    """Another node's groups: (uid, prompt, answers)."""
    share(folder, node, step, [Shared(node, step, *group) for group in groups])


def test_worked_example(tmp_path):
    """G = 2, foreign rewards (1, 1), (0, 1), (0, 0): the second alone is of use."""
    other(
        tmp_path,
        (31, "x", (RIGHT, RIGHT)), (33, "z", (WRONG, RIGHT)), (32, "y", (WRONG, WRONG)),
    )  # fmt: skip
    batch, found = step_of(TrainOnSharedGroups(str(tmp_path), "me", own=1, foreign=1))
    assert found.metrics == {
        "shared/nodes": 1.0, "shared/groups": 3.0, "shared/live": 1.0, "shared/taken": 1.0,
        "shared/unreadable": 0.0,
    }  # fmt: skip
    assert found.value.keep_B.sum() == 2
    assert len(set(batch["group_B"][found.value.keep_B].tolist())) == 1
    added = found.value.add
    assert added["uid_P"].tolist() == [33]
    assert added["draw_P"].tolist() == [FOREIGN + 1]
    assert added["id_T"].tolist() == [9, 6, 6, 9, 5, 0]  # an end where it ended
    assert added["mask_T"].tolist() == [False, True, True, False, True, True]
    assert added["truncated_B"].tolist() == [True, False]
    assert added["reward_B"].tolist() == [0.0, 1.0]
    assert added["logp_behavior_T"].isnan().all()
    assert len(set(added["rollout_uid_B"].tolist())) == 2
    assert (added["rollout_uid_B"] < 0).all()  # no number of a rollout of its own
    joined = batch.keep(found.value.keep_B).join(added)
    assert joined.size("B") == 4
    assert joined.size("P") == 2
    advantages = functional.advantages(
        "sapo_swarm", rewards=added["reward_B"], groups=added["group_B"], mask=torch.ones(2, 1)
    )
    assert advantages.flatten().tolist() == pytest.approx([-0.707107, 0.707107], abs=1e-6)


def test_a_step_is_shared_as_texts_and_its_own_is_not_read(tmp_path):
    batch, found = step_of(TrainOnSharedGroups(str(tmp_path), "me"))
    assert found.value.keep_B.all()  # nobody else: 4 own ones and 4 more, there are 2
    assert found.value.add is None
    table = json.loads((tmp_path / "me.json").read_text())
    assert table["step"] == 4
    assert [(g["uid"], g["prompt"]) for g in table["groups"]] == [(31, "x"), (32, "y")]
    texts = FakeTexts(PROMPTS, PIECES, special_ids=(0,)).decoded(batch)[1]
    ended = [not truncated for truncated in batch["truncated_B"].tolist()]
    said = [tuple(answer) for group in table["groups"] for answer in group["answers"]]
    assert said == [*zip(texts, ended, strict=True)]


def test_what_was_read_is_not_trained_on_again(tmp_path):
    part = TrainOnSharedGroups(str(tmp_path), "me", own=0, foreign=2)
    other(tmp_path, (33, "z", (WRONG, RIGHT)))
    (group,), steps, _ = of_others(tmp_path, "me", {})
    assert {group.node: group.step} == steps
    _, first = step_of(part)
    assert first.value.add.size("B") == 2
    assert first.value.keep_B.sum() == 2  # one own group in place of a second foreign one
    _, second = step_of(part, step=5, state=first.state)
    assert second.metrics["shared/groups"] == 0
    assert second.value.add is None
    assert second.value.keep_B.all()
    other(tmp_path, (33, "z", (RIGHT, WRONG)), step=4)
    _, third = step_of(part, step=6, state=second.state, sizes=(2, 1))  # its largest group counts
    assert third.value.add["reward_B"].tolist() == [1.0, 0.0]


def test_what_others_wrote_is_never_trusted(tmp_path):
    mixed = (WRONG, RIGHT)
    other(
        tmp_path,
        (34, "x", mixed), (33, "y", mixed), (33, "z", (*mixed, RIGHT)),
        (33, "z", (("bbbbb", False), RIGHT)), (33, "z", (("", False), RIGHT)),
    )  # fmt: skip
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"step": 1, "groups": [{"uid": 33}]}'),
                       ("d", '{"step": 1, "groups": [{"uid": 33, "prompt": "z", '
                             '"answers": [[1, true]]}]}')):  # fmt: skip
        (tmp_path / f"{name}.json").write_text(text)
    _, found = step_of(TrainOnSharedGroups(str(tmp_path), "me"))
    assert found.value.add is None
    assert found.metrics["shared/groups"] == 5
    assert found.metrics["shared/live"] == 0
    assert found.metrics["shared/unreadable"] == 4
    (tmp_path / "a.json").unlink()
    assert of_others(tmp_path, "me", {})[2] == 3
    (tmp_path / "e.json").write_text('{"step": Infinity, "groups": []}')
    assert of_others(tmp_path, "me", {})[2] == 4
    half = {"uid": 33, "prompt": "z", "answers": [["a\ud83d", True]]}
    (tmp_path / "f.json").write_text(json.dumps({"step": 1, "groups": [half]}))
    (group,) = (each for each in of_others(tmp_path, "me", {})[0] if each.node == "f")
    assert group.answers == (("a\\ud83d", True),)  # no tokenizer takes half of a surrogate pair


def test_composes(tmp_path):
    alone = grpo(eps=1e-8, clip_high=0.28, aggregation="token-mean", num_prompts=8, num_rollouts=8)
    assert sapo_swarm(foreign=0) == alone
    part = sapo_swarm(store=str(tmp_path), node="one", own=6, foreign=2).curation[0].part
    assert part == TrainOnSharedGroups(str(tmp_path), "one", 6, 2)
    with pytest.raises(UserError, match="a name that no other node has"):
        sapo_swarm(store="somewhere")
    with pytest.raises(UserError, match="letters, digits"):
        notation.recipe("sapo_swarm(store='somewhere', node='a/b')")


def test_several_processes_would_each_read_for_themselves(tmp_path):
    lab = Lab.make(tmp_path)
    raw = lab.raw("sapo_swarm(store='somewhere', node='one')", "even")
    with pytest.raises(UserError, match="2 processes may not find the same"):
        asynchronous.check_here(config.make(raw).build(), Several(0, 2, 0, None))
    asynchronous.check_here(config.make(raw).build(), Ranks())
    asynchronous.check_here(config.make(lab.raw("sapo_swarm")).build(), Several(0, 2, 0, None))


def test_a_node_without_others_is_grpo_and_nodes_of_different_models_share(tmp_path):
    lab, store = Lab.make(tmp_path), tmp_path / "store"
    plain = "grpo(eps=1e-8, clip_high=0.28, aggregation='token-mean')"
    for name, recipe in (("plain", plain), ("alone", "sapo_swarm")):
        Runner().whole(lab.raw(recipe, "even"), tmp_path / name)
    theirs = without_times(tmp_path / "plain")
    for one, other in zip(without_times(tmp_path / "alone"), theirs, strict=True):
        assert one == {**other, "data/dropped/not_drawn": 0.0}

    runs = {}
    for node, size in (("large", 32), ("small", 16)):
        model = save_model(tmp_path / f"model-{node}", hidden=size, seed=size)
        raw = lab.raw(f"sapo_swarm(store='{store}', node='{node}', own=1, foreign=1)", "even")
        raw["model"] = {"name": str(model)}
        runs[node] = raw
    Runner().whole(runs["large"], tmp_path / "large")
    runner = Runner()
    small = runner.start(runs["small"], tmp_path / "small")

    def again(run):
        """The other node goes on: it has drawn another step."""
        table = json.loads((store / "large.json").read_text())
        (store / "large.json").write_text(json.dumps({**table, "step": 10 + run.done}))

    seen = runner.go(small, again).seen
    assert sum(line["shared/taken"] for line in seen) >= 1
    assert {line["num_rollouts"] for line in seen} == {8.0}
    assert all(line["shared/groups"] == 2 for line in seen)
    assert sorted(path.name for path in store.iterdir()) == ["large.json", "small.json"]
