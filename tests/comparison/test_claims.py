"""Claims of papers are whole, their experiments compose, and verdicts follow from intervals."""

import csv
import dataclasses
import importlib.util
import json
import math
from pathlib import Path

import pytest
from commands import Strop

import strop
from strop.api.reproduce import Outcome
from strop.catalogue import catalogue
from strop.comparison.claims import Claim, claims, claims_of, difference, results
from strop.comparison.plan import Scoring
from strop.comparison.verdict import FEWEST_SEEDS, judge
from strop.support.errors import UserError

ROOT = Path(__file__).parents[2]
SAYS = {"recipe": "grpo", "name": "some", "text": "It is so.", "source": "arXiv 2402.03300"}
TESTED = {**SAYS, "number": "x", "ours": ("grpo",), "theirs": ("rloo",)}


@pytest.fixture
def command(monkeypatch, capsys):
    return Strop(monkeypatch, capsys)


def verdict(expect, ours, theirs=(0.0,) * 6, **more):
    claim = Claim(**TESTED, expect=expect, **more)
    scores = {name: dict(enumerate(each)) for name, each in (("grpo", ours), ("rloo", theirs))}
    row = next(row for row in judge({"x": scores}, "rloo") if row.label == "grpo")
    return claim.verdict(row)


def test_a_verdict_follows_the_interval():
    clear, mixed = (1.0, 1.1, 0.9, 1.2, 1.0, 1.05), (1.0, -1.1, 0.9, -1.2, 1.0, -1.05)
    assert verdict("higher", clear) == "holds"
    assert verdict("lower", clear) == "opposite"
    assert verdict("higher", mixed) == "not decided"
    assert verdict("equal", clear, within=2.0) == "holds"
    assert verdict("equal", clear, within=0.5) == "opposite"
    assert verdict("equal", clear, within=1.05) == "not decided"
    assert verdict("equal", (0.0,) * 6, within=0.1) == "holds"  # no interval, and none is needed
    for few in ((1.0, 1.1, 0.9, 1.2), (0.0,)):
        assert verdict("higher", few, few[::-1]) == "too few seeds"
        assert verdict("equal", few, few, within=0.1) == "too few seeds"


def test_a_difference_that_is_the_same_for_all_has_no_limits():
    claim = Claim(**TESTED, expect="higher")
    scores = {"grpo": dict.fromkeys(range(5), 2.0), "rloo": dict.fromkeys(range(5), 1.0)}
    rows = {row.label: row for row in judge({"x": scores}, "rloo")}
    found = Outcome(claim, "holds", rows["grpo"], rows["rloo"]).lines()
    assert found[-1] == "  found: 2 and 1, difference +1 (each time, 5 seeds)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expect": ""}, "give number, expect, ours and theirs"),
        ({"untestable": "no model"}, "give number, expect, ours and theirs"),
        ({"expect": "more"}, "expect is 'more'"),
        ({"expect": "equal"}, "`within` belongs to"),
        ({"within": 0.1}, "`within` belongs to"),
    ],
)
def test_a_claim_that_is_not_whole_is_refused(change, message):
    with pytest.raises(UserError, match=message):
        Claim(**{**TESTED, "expect": "higher", **change})


def test_every_claim_is_of_a_recipe_and_both_methods_compose():
    from strop.api.reproduce import _settings

    recipes = {entry.name for entry in catalogue.recipes()}
    assert {claim.recipe for claim in claims()} <= recipes
    assert min(claim.seeds for claim in claims()) >= FEWEST_SEEDS  # with fewer nothing is decided
    assert len({claim.id for claim in claims()}) == len(claims())
    for claim in claims():
        models = set()
        for words in (claim.ours, claim.theirs) if not claim.untestable else ():
            settings = _settings(claim, words)
            if not claim.audited:  # an audit gives environments to those that play
                settings.build()
                models.add(settings.model.name)
        assert len(models) <= 1, claim.id


def test_experiments_of_both_kinds_say_what_they_found(tmp_path, monkeypatch):
    unbiased = strop.reproduce("rloo/unbiased", seeds=5).outcomes[0]
    assert unbiased.verdict == "holds"
    assert unbiased.ours.mean.value == pytest.approx(1, abs=1e-6)
    assert unbiased.theirs.mean.value == pytest.approx(3 / 4, abs=1e-6)  # groups of four
    with pytest.raises(UserError, match="steps is 3: rloo/unbiased is enumerated, not trained"):
        strop.reproduce("rloo/unbiased", steps=3)
    claim = claims_of("dapo/clip_higher")[0]
    small = dataclasses.replace(
        claim, options=("sampling.num_prompts=2", "sampling.num_rollouts=2")
    )
    monkeypatch.setattr("strop.api.reproduce.claims_of", lambda name: [small])
    few = Scoring(ks=(1,), samples=1, prompts=4)
    monkeypatch.setattr(Claim, "scoring", lambda _: few)
    run = strop.reproduce("dapo/clip_higher", seeds=2, steps=1, out=tmp_path, progress=False)
    again = strop.reproduce("dapo/clip_higher", seeds=2, steps=1, out=tmp_path, progress=False)
    assert run.outcomes[0].verdict == "too few seeds"
    assert run.outcomes[0].row() == again.outcomes[0].row()
    assert (tmp_path / "dapo-clip_higher/compare.html").exists()
    assert "expected: late/entropy of grpo(clip_high=0.28) higher than of grpo" in repr(run)
    assert "would be seen" not in repr(run)
    alone = {small.number: {small.labels[0]: {0: 1.0, 1: 1.0}}}
    monkeypatch.setattr("strop.api.reproduce.by_metric", lambda _: alone)
    with pytest.raises(UserError, match=f"the runs of {small.labels[1]} have no late/entropy"):
        strop.reproduce("dapo/clip_higher", seeds=2, steps=1, out=tmp_path, progress=False)


def test_the_command_keeps_results_beside_older_ones(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = tmp_path / "found.csv"
    for name in ("loop", "digirl"):
        said = command("reproduce", name, "--csv", table)
        assert said.code == 0, said.err
        assert f"{name}/" in said.out
        assert "not testable here" in said.out
    nowhere = command("reproduce", "loop", "--csv", tmp_path / "none/found.csv")
    assert (nowhere.code, nowhere.out) == (2, "")
    assert "none/found.csv: its folder does not exist" in nowhere.err
    with table.open() as file:
        assert [row["claim"] for row in csv.DictReader(file)] == ["digirl/android", "loop/appworld"]


def test_the_command_lists_claims_for_machines(command):
    said = command("reproduce", "--json")
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert {row["claim"] for row in rows} >= {"rloo/unbiased", "dapo/clip_higher"}
    assert all(row.keys() == {"claim", "text", "by", "found"} for row in rows)


def test_a_result_without_a_number_is_null_for_machines(command, monkeypatch):
    class Equal:
        def row(self):
            return {"claim": "rloo/unbiased", "resolves": float("nan")}

    monkeypatch.setattr("strop.api.reproduce.outcomes", lambda *_: [Equal()])
    said = command("reproduce", "rloo/unbiased", "--json")
    assert json.loads(said.out, parse_constant=pytest.fail)["resolves"] is None


def test_an_interrupted_command_says_that_it_can_be_resumed(command, monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("strop.api.reproduce.outcomes", interrupted)
    said = command("reproduce", "rloo/unbiased", "--out", tmp_path)
    assert said.code == 130
    assert f"saved stays in {tmp_path}: the same command resumes them" in said.err


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"no claim of 'clip_covv' is recorded.*clip_cov"):
        strop.reproduce("clip_covv")
    for number in (1, -1):
        with pytest.raises(UserError, match=f"seeds is {number}: "):
            strop.reproduce("rloo/unbiased", seeds=number)


def test_runs_are_scored_so_that_the_number_is_there():
    def scoring(number):
        found = Claim(**TESTED | {"number": number, "expect": "higher"}).scoring()
        return found.ks, found.samples, found.means

    assert scoring("pass@32") == ((1, 32), 32, ())
    assert scoring("pass@4") == ((1, 4), 16, ())
    assert scoring("mean/approx_kl") == ((1,), 16, ("approx_kl",))


def test_equal_numbers_have_no_interval():
    told = [
        difference({"difference": gap, "low": low, "high": high})
        for gap, low, high in (
            ("0.02", "-0.01", "0.05"),
            ("0.0", "nan", "nan"),
            ("1", "nan", "nan"),
        )
    ]
    assert told == ["+0.02 (-0.01 to +0.05)", "they are equal", "+1 each time"]


def write_claims():
    spec = importlib.util.spec_from_file_location("write_claims", ROOT / "tools/write_claims.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_methods_that_are_equal_each_time_are_no_certain_difference(monkeypatch):
    """By Holm a p of 0.03 (t = 2.57, 9 degrees of freedom) is 0.06 beside another test."""
    module, known = write_claims(), [claim.id for claim in claims() if claim.expect == "higher"]
    numbers = {"difference": "1", "low": "0.12", "high": "1.88", "seeds": "10", "verdict": "holds"}
    equal = {**dict.fromkeys(numbers, "nan"), "difference": "0.0", "seeds": "10",
             "verdict": "not decided"}  # fmt: skip
    for other, kept in (({}, 1), ({known[1]: equal}, 0)):
        monkeypatch.setattr(module, "results", lambda other=other: {known[0]: numbers, **other})
        assert f"{kept} of the 1 decided ones stay so" in module.together()


def test_the_page_and_the_results_are_of_the_claims_that_stand():
    module = write_claims()
    assert (ROOT / "docs/CLAIMS.md").read_text() == module.page()
    known = {claim.id: claim for claim in claims()}
    for name, row in results().items():
        claim = known[name]
        assert (row["number"], row["expected"], row["text"]) == (
            claim.number, claim.expect, claim.text
        )  # fmt: skip
        assert int(row["seeds"]) == claim.seeds
        assert math.isfinite(float(row["difference"]))
