"""docs/METRICS.md explains every logged number, and no others."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import collectors_copied
from fakes.brittle import BrittleSettings
from metrics_page import PAGE, in_runs, keys_of, pattern_of, same_metric, undocumented
from models import Lab, save_model
from scripted_model import save_scripted
from short_runs import EPISODES, TWO_HEADS, Logged, make_lab, of_traces, run_of, settings_for

from strop.catalogue import catalogue
from strop.catalogue.logged import logged_by, metrics_in
from strop.engines import open as engines
from strop.engines.local import speculation
from strop.evaluation.run import REWARD
from strop.evaluation.samples import Samples
from strop.evaluation.summary import summarise
from strop.method import notation
from strop.method.cost import ASKING
from strop.method.part import Use, facts, name_of

TEXT = PAGE.read_text(encoding="utf-8")
# Evaluations differ by what a method learns from: answers of its own, given ones, pairs.
EVALUATED = ("grpo", "sft", "dpo")
# A penalty over the whole distribution: no recipe has one by default.
FULL_KL = """
import dataclasses

from strop.method.algorithm import Algorithm
from strop.method.part import Term
from strop.parts.loss.penalty.penalise_full_kl_to_reference import PenaliseFullKlToReference
from strop.method.part import Use
from strop.recipes._base import average
from strop.recipes.grpo import grpo


def full_kl() -> Algorithm:
    algorithm = grpo()
    term = Term("full_kl", Use(PenaliseFullKlToReference()), average("token-mean"), coef=0.1)
    return dataclasses.replace(algorithm, terms=(*algorithm.terms, term))
"""


@functools.cache
def measuring() -> dict[str, set[str]]:
    """The metrics of parts that have some."""
    found = {entry.name: {*logged_by(entry)} for entry in catalogue.parts()}
    return {name: keys for name, keys in found.items() if keys}


def measured_at(path: str, use: Use) -> set[str]:
    """The part where it measures, and its stage with each thing that the run counts for it."""
    stage = path.split(".")[0]
    return ({name_of(use.part)} & measuring().keys()) | {
        f"{stage} {f}" for f in facts(use) & ASKING.keys()
    }


def recipes_that_measure() -> list[str]:
    """Few recipes whose parts are all the parts with metrics that any recipe has."""
    used = {
        entry.name: set().union(*(measured_at(*u) for u in notation.recipe(entry.name).uses()))
        for entry in catalogue.recipes()
    }
    left = set().union(*used.values())
    chosen = ["grpo", "epo", "vopd"]  # their parts measure in one of their forms alone
    while left := left - set().union(*(used[name] for name in chosen)):
        chosen.append(max(used, key=lambda name: len(used[name] & left)))
    return chosen


def posted_groups(folder: Path) -> Path:
    """A folder with the three groups of a step, as somebody would put them there."""
    folder.mkdir()
    turn = {"prompt_ids": [3, 13], "output_ids": [4, 5], "versions": [0, 0]}
    rows = [{"group": g, "reward": n % 2, "turns": [turn]} for g in "abc" for n in range(4)]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Every key of a run of two steps, or three, of enough recipes and tasks, by name.

    Where every_recipe/test_training.py has run a recipe before, it is what that run logged.
    """
    kept = Logged(tmp_path_factory)
    folder = tmp_path_factory.mktemp("logged")
    lab = make_lab(folder)
    own = folder / "own.py"
    own.write_text(FULL_KL + TWO_HEADS, encoding="utf-8")
    pairwise = "self_improving_pretraining(wins=True)"  # off by default
    removing = "latr(eta=1, tau_abs=0, tau_rel=1, r=(2,), tau_ed=2)"  # so that tokens are lost
    stopping = "arrol(L_detect=2)"
    exploring = "sol_rl_explore_then_train(K=2)"
    extra = [
        stopping,
        exploring,
        f'"{own}:full_kl"',
        f'"{own}:two_heads"',
        pairwise,
        "parl_bilevel(head=True)",
        "until(1, grpo) | dapo",
        removing,
        f"sapo_swarm(store='{folder}/shared', node='one')",
    ]
    found = {
        name: (kept.of(name) or keys_of_steps(lab, name, folder)) - {"step"}
        for name in recipes_that_measure()
    }
    found |= {name: keys_of_run(lab, name, folder) for name in EVALUATED}
    found |= {name: keys_of_steps(lab, name, folder) for name in extra}
    paying = {"reward": "score_with_verifiers | reward_new_states"}
    for recipe, task, stages in (("mrs", "corridor", paying), ("grpo", "hide_and_guess", {})):
        data = {"data": {"task": task}, "model": {"name": "tiny"}, "reward": {"functions": []}}
        found[task] = keys_of_run(lab, recipe, folder, task, stages=stages, **data)
    several = {**data, "model": {"name": "tiny", "lora_rank": 2}}
    league = {"play": "each", "league_every": 1}
    found["league"] = keys_of_run(lab, "grpo", folder, "league", roles=league, **several)
    found["traces"] = keys_of_run(lab, "grpo", folder, "traces", **of_traces(lab))
    posted = posted_groups(folder / "posted_groups")
    once = {**lab.raw()["training"], "steps": 1, "save_every": 0}
    found["posted"] = keys_of_run(
        lab, "grpo", folder, "posted", training=once, reward={"functions": []},
        data={"task": f"traces:queue:{posted}"},
    )  # fmt: skip
    narrow = folder / "narrow.py"
    narrow.write_text(EPISODES.replace("(0.0, 1.0)", "(0.0, 0.1)"), encoding="utf-8")
    found["narrow"] = keys_of_run(
        lab, "grpo", folder, "narrow", training=once, reward={"functions": []},
        data={"task": f"{narrow}:Even"},
    )  # fmt: skip
    script = {'call calculator {"expression": "2"}': 0.6, "2": 0.4}
    model = save_scripted(folder / "scripted", script)
    asked = {"task": "tool_questions", "task_config": {"kinds": ["arithmetic"]}}
    tools = {"data": asked, "model": {"name": str(model)}, "reward": {"functions": []}}
    stored = {"rollout": "play_with_library"}
    found["tools"] = keys_of_run(lab, "grpo", folder, "tools", stages=stored, **tools)
    mixture = {"name": str(save_model(folder / "experts", experts=4)), "router_replay": "R3",
               "router_aux_loss_coef": 0.1}  # fmt: skip
    found["experts"] = keys_of_run(lab, "grpo", folder, "experts", model=mixture, training=once)
    mixed = {"files": [str(lab.data), f"other={lab.data}"], "weights": [2, 1]}
    cut = lab.raw()["algorithm"] | {"rollout.top_p": 0.9, "rollout.sampling_mask": "renormalise"}
    found["cut"] = keys_of_run(lab, "grpo", folder, "cut", algorithm=cut)
    by_gap = {"sampling": "draw_sources_by_gap | track_success"}
    found["mixed"] = keys_of_run(lab, "grpo", folder, "mixed", data=mixed, stages=by_gap)
    ahead = {**lab.raw()["training"], "save_every": 0, "max_staleness": 1}
    with collectors_copied():
        judged = {"every": 3, "num_samples": 2, "reward": [f"{lab.rewards}:even"]}
        found["ahead"] = keys_of_run(
            lab, "grpo", folder, "ahead", training=ahead, evaluation=judged
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculation, "STEP", 1e9)  # draft whatever is known, not what pays
        few = {**lab.raw()["training"], "save_every": 0, "num_slots": 2}  # some answers come first
        found["drafting"] = keys_of_run(
            lab, "grpo", folder, "drafting", training=few, engine={"speculate": 3}
        )
        patch.setitem(engines.ENGINES, "brittle", BrittleSettings)
        found["failing"] = keys_of_run(lab, "grpo", folder, "failing", engine={"kind": "brittle"})
    return found


def keys_of_steps(lab: Lab, recipe: str, folder: Path) -> set[str]:
    """The keys that two steps log, without an evaluation: those are of no recipe."""
    training = {"steps": 2, "save_every": 0, "rollouts_every": 0, "conflict_every": 2}
    place = folder / re.sub(r"\W", "", f"{recipe}-2")
    return keys_in(run_of(settings_for(lab, recipe, training=training), place))


def keys_in(lines: list[dict[str, Any]]) -> set[str]:
    return {key for line in lines for key in line} - {"step"}


def keys_of_run(
    lab: Lab, recipe: str, folder: Path, name: str = "", **sections: object
) -> set[str]:
    """The keys that three steps with two evaluations log."""
    raw = settings_for(lab, recipe, training={"save_every": 0, "rollouts_every": 0},
                       evaluation={"every": 3})  # fmt: skip
    lines = run_of({**raw, **sections}, folder / re.sub(r"\W", "", name or recipe))
    return keys_in(lines)


def test_every_number_in_the_source_of_a_part_is_documented() -> None:
    documented, unknown = keys_of(TEXT), {}
    assert len(measuring()) > 100
    for part, keys in measuring().items():
        if left := [k for k in keys if not any(same_metric(k, d) for d in documented)]:
            unknown[part] = left
    assert not unknown, "docs/METRICS.md does not explain what these parts write"


def test_numbers_are_found_in_a_source() -> None:
    text = 'x = {f"own/{self.name}": 1, "own/mean": 2, "group_B": 3}\nf(f"{name}/mean", "a b/c")'
    assert metrics_in(text) == {"own/{name}", "own/mean"}
    assert metrics_in('f(x, metrics={"kl": y, "own/mean": z})') == {"kl", "own/mean"}
    assert metrics_in('Selected(a, b, "late"); Curated(a, "old"); Selected(a, b, why)') == {
        "selection/dropped/late", "data/dropped/old"
    }  # fmt: skip
    assert same_metric("own/{x}", "own/mean")
    assert same_metric("own/mean", "own/{name}")
    assert not same_metric("own/mean", "own/least")
    assert undocumented({"reward": 1, "reward_made_up": 2, "eval/train/pass@4/low": 3}) == [
        "reward_made_up"
    ]


def test_every_logged_number_is_documented(logged: dict[str, set[str]]) -> None:
    for recipe, keys in logged.items():
        unknown = undocumented(keys)
        assert not unknown, f"{recipe} logs {unknown}, which docs/METRICS.md does not explain"


def test_every_documented_number_is_logged(logged: dict[str, set[str]]) -> None:
    everything = set().union(*logged.values())
    documented = in_runs(TEXT)
    assert len(documented) > 50
    assert len(set(documented)) == len(documented)
    unlogged = [k for k in documented if not any(pattern_of(k).fullmatch(f) for f in everything)]
    assert not unlogged


def test_every_number_of_an_evaluation_is_documented() -> None:
    alone = keys_of(TEXT)[len(in_runs(TEXT)) :]
    shared = [key.removeprefix("eval/{split}/") for key in in_runs(TEXT) if "{split}" in key]
    shared.remove(REWARD)  # of the run's rewards, beside it
    patterns = [pattern_of(key) for key in (*alone, *shared)]
    samples = Samples(
        prompt_B=np.array([0, 0, 1, 1]), score_B=np.array([1.0, 0.0, 0.0, 1.0]),
        length_B=np.array([3, 4, 5, 6]), truncated_B=np.array([False, True, False, False]),
        answer_B=["1", "2", "3", None], confidence_B=np.array([-0.1, -0.2, -0.3, -0.4]),
        entropy_B=np.array([0.1, 0.2, 0.3, 0.4]), measured={"recall": np.ones(4)},
    )  # fmt: skip
    found = summarise(samples, (1, 2))
    assert [key for key in found if not any(p.fullmatch(key) for p in patterns)] == []
    assert [p.pattern for p in patterns if not any(p.fullmatch(key) for key in found)] == []


def test_formulas_have_a_unit_and_a_scope() -> None:
    for line in TEXT.splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        if line.startswith("| `") and len(cells) == 4:
            assert all(cell.strip() for cell in cells), line


def test_other_names_are_of_documented_metrics() -> None:
    ours = re.findall(r"^\| `([^`]+)` \|", TEXT.split("## Names elsewhere")[1], re.M)
    assert len(ours) > 20
    assert set(ours) <= set(in_runs(TEXT))


def test_every_scope_is_one_that_the_page_defines():
    """`rewards/{name}/mean` was said to be of the last sampling round; it is over all rounds."""
    (defined,) = re.findall(r"^Scopes: .*?\n\n", TEXT, re.M | re.S)
    scopes = {*re.findall(r"\*\*([\w ]+)\*\*", defined), "split"}  # split: of an evaluation
    tables = re.findall(r"\| key \| formula \| unit \| scope \|\n.*?\n\n", TEXT + "\n\n", re.S)
    rows = [row.rstrip(" |").rpartition(" | ")[2] for t in tables for row in t.split("\n")[2:]]
    assert {"step", "sampled", "split"} <= {*rows} - {""} <= scopes
