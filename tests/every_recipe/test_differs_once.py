"""In the setting that a recipe states under "Differs once" it does other than its parent.

A sample in the suite, `STROP_ALL_SETTINGS=1 pytest -n 0 tests/every_recipe/test_differs_once.py`
takes all, in a minute.
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

STATED = {
    entry.name: found.group(1)
    for entry in catalogue.recipes()
    if (found := re.search(r"`(.+?)`", entry.line("Differs once")))
}
SAMPLE = (
    "aspo_tool", "arrol", "gspo", "gspo_token", "optimal_token_baseline_multi_turn", "rollart",
    "rollout_correction", "spae",
)  # fmt: skip
# What the lab's answers and data have in place of those of the shipped models.
HERE = {
    'reference="answers"': 'reference="answer"',
    "L_detect=16": "L_detect=3",
    "data.train_size=16": "data.train_size=6",
    'marker="\\n"': 'marker="+"',
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return make_lab(tmp_path_factory.mktemp("lab"))


@pytest.mark.parametrize("recipe", STATED if "STROP_ALL_SETTINGS" in os.environ else SAMPLE)
def test_it_does_other_than_its_parent_then(recipe, lab, tmp_path, monkeypatch):
    text = STATED[recipe]
    for shipped, here in HERE.items():
        text = text.replace(shipped, here)
    ((_, (method, *options), _),) = methods_of(
        [text if text.startswith(recipe) else f"{recipe} {text}"]
    )
    staleness = max([int(n) for n in re.findall(r"staleness=(\d)", text)], default=0)
    steps = staleness + 3
    raw = settings_for(
        lab,
        recipe,
        training={
            "steps": steps,
            "lr": 0.05,
            "save_every": 0,
            "rollouts_every": 0,
            "token_budget": 4096,
        },
    )
    raw["recipe"] = method
    raw["algorithm"]["sampling.num_rollouts"] = 8
    if "data.task=" in text:
        episodes = tmp_path / "episodes.py"
        episodes.write_text(EPISODES, encoding="utf-8")
        raw |= {
            "data": {"task": f"{episodes}:Even", "train_size": 12, "validation_size": 2},
            "reward": {},
        }
    raw = override(
        raw, [o.replace("'", "") for o in options if not o.startswith(("data.task", "training.lr"))]
    )
    monkeypatch.setattr(
        relatives,
        "watching",
        lambda run, step, rng_of: SameRows(
            rng_of, dict(run.state), run.world.services, run.world.pool
        ),
    )
    parent = catalogue.find("recipe", recipe).line("Parent")
    found = []

    def looked(run):
        if (
            run.likeness is not None
            and run.likeness.step == run.done
            and parent in run.likeness.apart
        ):
            found.append(run.likeness.apart[parent])
            run.stop_asked = True

    Runner().go(Runner().start(raw, tmp_path / "run"), looked)
    assert found, f"{recipe} under {text}: no step is other than its parent's"
