"""In the setting that a recipe states under "Differs once" it does other than its parent.

A sample in the suite, `STROP_ALL_SETTINGS=1 pytest -n 0 tests/every_recipe/test_differs_once.py`
takes all, in two minutes.
"""

import os
import re

import pytest
from runs import Runner
from short_runs import EPISODES, make_lab, settings_for

from strop.catalogue import catalogue
from strop.cli.compare import methods_of
from strop.training import relatives
from strop.training.learner.same_rows import SameRows
from strop.training.settings.assignments import override

LINES = {e.name: line for e in catalogue.recipes() if (line := e.line("Differs once"))}
STATED = {name: found.group(1) for name, line in LINES.items()
          if (found := re.search(r"`(.+?)`", line))}  # fmt: skip
# Lines in words, of something that happens in a run: a setting of the lab in which it does.
IN_WORDS = {
    "drive": "training.steps=4",
    "gdpo": "",
    "lp_reg": "lp_reg(rho_pct=0.4, kappa=0.4)",
    "parl_bilevel": "",
    "ppo_ewma": "",
    "prs": "",
    "remix": "",
    "rollout_gdro": "data.train_size=6 training.steps=12 sampling.num_rollouts=3",
    "salt_graph": "",
    "sapo_swarm": "sapo_swarm(store='STORE', node='one')",
    "scope_recycle": 'scope_recycle(separator="=", num_repaired=8, num_tries=8) training.steps=8',
    "spae": "",
    "spear": "",
    "turn_ppo": "",
    "turning_point_grpo": "",
    "v_zero": "",
}
# What another run does before.
BEFORE = {"sapo_swarm": "sapo_swarm(store='STORE', node='other')"}
SAMPLE = (
    "aspo_tool", "arrol", "gspo", "gspo_token", "lp_reg", "optimal_token_baseline_multi_turn",
    "rollart", "rollout_correction", "spae", "st_ppo", "turn_ppo",
)  # fmt: skip
# What the lab's answers and data have in place of those of the shipped models.
HERE = {
    "L_detect=16": "L_detect=3",
    "data.train_size=16": "data.train_size=6",
}
ALL = "STROP_ALL_SETTINGS" in os.environ


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return make_lab(tmp_path_factory.mktemp("lab"))


def raw_of(lab, recipe, text, folder):
    """Settings of a short run of the recipe, under the options of the text."""
    for shipped, here in {**HERE, "STORE": str(folder / "store")}.items():
        text = text.replace(shipped, here)
    ((_, (method, *options), *_),) = methods_of(
        [text if text.startswith(recipe) else f"{recipe} {text}"]
    )
    staleness = max([int(n) for n in re.findall(r"staleness=(\d)", text)], default=0)
    training = {
        "steps": staleness + 3, "lr": 0.05, "save_every": 0, "rollouts_every": 0,
        "token_budget": 4096,
    }  # fmt: skip
    raw = settings_for(lab, recipe, training=training)
    raw["recipe"] = method if "(" in method else raw["recipe"]
    raw["algorithm"]["sampling.num_rollouts"] = 8
    if "data.task=" in text:
        episodes = folder / "episodes.py"
        episodes.write_text(EPISODES, encoding="utf-8")
        raw |= {
            "data": {"task": f"{episodes}:Even", "train_size": 12, "validation_size": 2},
            "reward": {},
        }
    own = ("data.task", "training.lr")
    return override(raw, [o.replace("'", "") for o in options if not o.startswith(own)])


def apart_from(parent, raw, folder, monkeypatch):
    """The stage at which the first step differs from the parent's that does; none: empty."""
    monkeypatch.setattr(
        relatives,
        "watching",
        lambda run, step, rng_of: SameRows(
            rng_of, dict(run.state), run.world.services, run.world.pool
        ),
    )
    found = []

    def looked(run):
        if (
            run.likeness is not None
            and run.likeness.step == run.done
            and parent in run.likeness.apart
        ):
            found.append(run.likeness.apart[parent])
            run.stop_asked = True

    Runner().go(Runner().start(raw, folder), looked)
    return found


@pytest.mark.parametrize("recipe", [r for r in LINES if ALL or r in SAMPLE])
def test_it_does_other_than_its_parent_then(recipe, lab, tmp_path, monkeypatch):
    text = STATED[recipe] if recipe in STATED else IN_WORDS[recipe]
    parent = catalogue.find("recipe", recipe).line("Parent")
    if recipe in BEFORE:
        Runner().whole(raw_of(lab, recipe, BEFORE[recipe], tmp_path), tmp_path / "before")
    raw = raw_of(lab, recipe, text, tmp_path)
    found = apart_from(parent, raw, tmp_path / "run", monkeypatch)
    assert found, f"{recipe} under {text}: no step is other than its parent's"


def test_every_line_is_proved():
    assert IN_WORDS.keys() == LINES.keys() - STATED.keys()
