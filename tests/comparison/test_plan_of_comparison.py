"""Plans: what is refused, what is restored from the folder, how arguments become methods."""

import json
from pathlib import Path
from typing import Any

import pytest

from strop.cli.compare import Written, methods_of
from strop.comparison.plan import Entry, Plan, Scoring, read_plan
from strop.support.errors import UserError

WORDS = ["sampling.num_prompts=4", "grpo", "rloo training.lr=1e-3"]


def planned(words: list[str] = WORDS, **changes: object) -> Plan:
    written: dict[str, Any] = {"seeds": 2, "steps": 6, "k": "1,4", **changes}
    return Written(**written).plan(methods_of(words))


def test_runs_that_may_end_early_are_refused() -> None:
    words = [*WORDS, "training.patience=2", "training.best=eval/validation/pass@1"]
    with pytest.raises(UserError, match=r"training\.patience=2 would end some runs early"):
        planned(words)


def test_options_of_all_and_of_one() -> None:
    plan = planned(at="3,6", target="pass@1=0.5", mean=["groups/frac_mixed"], band="0.3,0.4")
    assert [entry.label for entry in plan.entries] == ["grpo", "rloo training.lr=1e-3"]
    configs = [entry.config for entry in plan.entries]
    assert all("(num_prompts=4)" in text for text in configs)
    assert "lr = 0.001" in configs[1]
    assert "lr = 0.001" not in configs[0]
    assert all("save_every = 3\n" in text and "keep_checkpoints = 3\n" in text for text in configs)
    assert (plan.seeds, plan.steps, plan.baseline) == ((0, 1), 6, "grpo")
    assert plan.scoring == Scoring(
        at=(3, 6), ks=(1, 4), samples=4, target=("pass@1", 0.5), band=(0.3, 0.4),
        means=("groups/frac_mixed",),
    )  # fmt: skip


def test_options_behind_the_last_method_are_of_all_and_those_in_its_quotes_its_own() -> None:
    words = ["grpo", "dapo(clip_high = 0.3) advantage=subtract_group_mean | spread_evenly seed=1"]
    (first, second) = methods_of([*words, "training.lr=1e-3", "seed=0"])
    assert first == ("grpo", ["grpo", "training.lr=1e-3", "seed=0"], (), "")
    own = ["advantage=subtract_group_mean | spread_evenly", "seed=1"]
    all_words = ["dapo(clip_high = 0.3)", "training.lr=1e-3", "seed=0", *own]
    assert second == (words[1], all_words, (), "")
    quoted = "data.system_prompt='say \"no\" x=1'"  # one option, for a quote ends with its like
    assert methods_of(["grpo", f"rloo {quoted} seed=1"])[1][1] == ["rloo", quoted, "seed=1"]
    assert methods_of(["until(1, grpo) | dapo"])[0][1] == ["until(1, grpo) | dapo"]
    stage = "subtract_group_mean | spread_evenly"
    texts = (f"grpo advantage='{stage}'", f"grpo advantage={stage}")
    quoted_one, plain = (planned([text]).entries[0].config for text in texts)
    assert quoted_one == plain  # as a shell takes quotes off


def test_a_file_is_a_method(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('recipe = "rloo"\n[training]\nlr = 2e-3\n')
    plan = planned(["grpo", str(tmp_path / "mine.toml")])
    assert plan.entries[1].label == "mine"
    assert "lr = 0.002" in plan.entries[1].config


def test_a_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    plan = planned(at="3,6", target="pass@1=0.5", band="0.3,0.4")
    plan.keep(tmp_path / "made")
    assert read_plan(tmp_path / "made") == plan
    plan.keep(tmp_path / "made")  # the same one goes on
    assert (tmp_path / "made/runs/grpo.toml").read_text() == plan.entries[0].config


def test_methods_and_seeds_are_added(tmp_path: Path) -> None:
    planned().keep(tmp_path)
    more = planned([WORDS[0], "dr_grpo", *WORDS[1:]], seeds=3, baseline="grpo")
    more.keep(tmp_path)
    assert read_plan(tmp_path) == more
    assert (tmp_path / "runs/dr_grpo.toml").read_text() == more.entries[0].config
    with pytest.raises(UserError, match="differs in methods, settings"):  # the one of before
        planned(seeds=3).keep(tmp_path)


def test_another_plan_in_the_folder_is_refused_by_what_differs(tmp_path: Path) -> None:
    planned().keep(tmp_path / "made")
    with pytest.raises(UserError, match=r"differs in steps, .*seeds|differs in .*seeds, steps"):
        planned(seeds=3, steps=7).keep(tmp_path / "made")
    with pytest.raises(UserError, match=r"differs in methods, settings\), and .* only be added"):
        planned(["grpo", "dr_grpo"]).keep(tmp_path / "made")
    with pytest.raises(UserError, match=r"differs in seeds\)"):
        planned(seeds=1).keep(tmp_path / "made")
    with pytest.raises(UserError, match="differs in ks, samples"):
        planned(k="1,8").keep(tmp_path / "made")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("mine")
    with pytest.raises(UserError, match="holds something else"):
        planned().keep(tmp_path / "full")
    with pytest.raises(UserError, match="is not a comparison"):
        read_plan(tmp_path / "full")
    made = json.loads((tmp_path / "made/plan.json").read_text())
    (tmp_path / "made/plan.json").write_text(json.dumps({**made, "more": 1}))
    with pytest.raises(UserError, match="not a plan that this version wrote"):
        read_plan(tmp_path / "made")


@pytest.mark.parametrize(
    ("words", "changes", "told"),
    [
        ([], {}, "name the methods"),
        (["training.lr=1e-3"], {}, "name the methods"),
        (["grpo", "grpo"], {}, "grpo stands twice"),
        (["grpo", "rloo training.lr=1e-3", "rloo training.lr=1e+3"], {}, "too like"),
        (WORDS, {"baseline": "dapo"}, "none of the methods: grpo, rloo training.lr=1e-3"),
        (WORDS, {"k": "1,x"}, "--k takes whole numbers of at least 1 with commas between them"),
        (WORDS, {"k": "0"}, "--k takes whole numbers of at least 1"),
        (WORDS, {"k": "1,8", "samples": 4}, "--k 8 needs at least as many --samples"),
        (WORDS, {"at": "3,7"}, "--at 7: the runs have steps 1 to 6"),
        (WORDS, {"at": "0"}, "--at takes whole numbers of at least 1"),
        (WORDS, {"by": "watts"}, "yardsticks are steps, sampled, trained"),
        (WORDS, {"by": "sampled", "at": "6"}, "leave --at"),
        (WORDS, {"by": "sampled"}, "leave --k, --samples and --prompts out"),
        (WORDS, {"by": "trained", "k": "1,16", "prompts": 8}, "leave --k, --samples and --prompts"),
        (WORDS, {"target": "pass@1"}, "--target takes METRIC=VALUE"),
        (WORDS, {"target": "pass@3=0.5"}, "validations of grpo have k of"),
        (["evaluation.every=0", *WORDS], {"target": "pass@1=0.5"}, "needs validations"),
        (["evaluation.every=0", *WORDS], {"by": "trained", "k": "1,16"}, "--by trained needs"),
        (WORDS, {"band": "0.4,0.3"}, "the lower edge comes first"),
        (WORDS, {"band": "0.3"}, "--band 0.3: give LOW,HIGH"),
        (WORDS, {"band": "0.3,nan"}, "the lower edge comes first"),
        (WORDS, {"band": "wide"}, "--band takes numbers with commas between them, not 'wide'"),
        (["grpo", "rloo data.task=corridor"], {"start": True}, r"the \[data\] differ"),
        (["grpo", "no_such_recipe"], {}, "no_such_recipe"),
        (["grpo", "seed=3", "rloo"], {}, "seed=3 stands between two methods: write 'grpo seed=3'"),
        (["grpo", "training.lr=-1"], {}, "training.lr"),
        (["grpo", "training.lr=1e-4..1e-3"], {}, "is a range: give --tune N too"),
    ],
)
def test_refusals(words: list[str], changes: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told):
        planned(words, **changes)


def test_the_mistakes_of_all_methods_are_told_at_once() -> None:
    words = ["grpo", "rloo training.lrr=1", "dapo training.lrr=1 training.lrs=2"]
    with pytest.raises(UserError) as told:
        planned(words)
    assert str(told.value).splitlines() == [
        "2 mistakes:",
        "  rloo training.lrr=1: no option training.lrr, did you mean training.lr?",
        "  dapo training.lrr=1 training.lrs=2: 2 options are wrong:",
        "    training.lrr, did you mean training.lr?",
        "    training.lrs, did you mean training.lr?",
    ]
    with pytest.raises(UserError) as told:
        planned(["grpo", "rlo", "gspo(clip=1)", "rloo loss.clip_hig=1"])
    first, *lines = str(told.value).splitlines()
    assert first == "3 mistakes:"
    starts = ("  rlo: no recipe 'rlo'", "  gspo(clip=1): ", "  rloo loss.clip_hig=1: ")
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 3
    with pytest.raises(UserError, match=r"^no option training\.lrr"):  # of all methods
        planned(["grpo", "rloo", "training.lrr=1"])
    with pytest.raises(UserError, match=r"^rloo seed=x: "):  # of one
        planned(["grpo", "rloo seed=x"])


def test_without_k_no_more_answers_are_needed_than_are_drawn() -> None:
    given = [planned(k="", samples=count).scoring for count in (0, 4, 1, 32)]
    assert [(each.ks, each.samples) for each in given] == [
        ((1, 16), 16), ((1, 4), 4), ((1,), 1), ((1, 16), 32),
    ]  # fmt: skip


def test_long_labels_have_folders_of_their_own() -> None:
    names = [Entry("grpo(" + "x" * 60 + end + ")", "").slug for end in "ab"]
    assert len(set(names)) == 2
    assert max(map(len, names)) <= 60
    assert Entry("''", "").slug
    for one, other in (
        ("lr=.5", "lr=5"), ("w=[1,-1]", "w=[1,1]"), ("w=[1, -1]", "w=[1, 1]"), ("x=-1", "x=1"),
    ):  # fmt: skip
        assert Entry(f"grpo {one}", "").slug != Entry(f"grpo {other}", "").slug


def test_methods_are_compared_on_the_same_held_out_rows(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(40)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"data": [str(data)], "reward": ["exact_match"]}
    words = ["grpo data.heldout_size=8", "rloo data.heldout_size=12"]
    with pytest.raises(UserError, match=r"grpo .* and rloo .* hold out other rows"):
        planned(words, **given)
    with pytest.raises(UserError, match=r"grpo and rloo .* hold out other rows"):
        planned(["grpo", "rloo data.heldout_size=5"])  # of a shipped task
    assert planned(["grpo", "rloo data.train_size=64"])
    assert planned([words[0], "rloo data.heldout_size=8"], **given)
    assert planned(words, **given, score_on=[str(data)])
    words = ["grpo data.train_size=9", "rloo data.train_size=8"]  # files take no options of a task
    assert planned(words, task="corridor", reward=["exact_match"], score_on=[str(data)])
