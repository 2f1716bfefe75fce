"""In the setting that a recipe states under "Differs once" it behaves differently from its parent,
and a metric of its own shows it; under "In full once" the metric does.

The settings are used as stated, with few prompts and rollouts, until both have been seen.
"""

import pytest
from commands import graders_copied
from runs import Watcher

from strop.api.options import settings_of
from strop.catalogue import catalogue
from strop.evaluation.run import validator
from strop.training import loop, relatives
from strop.training.learner.same_rows import SameRows

REGIMES = {e.name: e.regime for e in catalogue.recipes() if e.regime is not None}
IN_FULL = {e.name for e in catalogue.recipes() if e.line("In full once")}
MOST = 12  # steps
QUIET = ("evaluation.every=0", "training.save_every=0", "training.rollouts_every=0",
         "training.inspect=0", f"training.steps={MOST}")  # fmt: skip
FEW = ("sampling.num_prompts=8", "sampling.num_rollouts=4")
# Fewer groups with more rollouts, in which these recipes find something to learn.
FEWER = dict.fromkeys(("ares_aepo", "mrs"), ("sampling.num_prompts=4", "sampling.num_rollouts=8"))
FEWER |= dict.fromkeys(("cure", "spae"), ("sampling.num_prompts=2", FEW[1]))
# Recipes that ask for a second reward or for measurements, which no shipped task has.
MEASURED = {"gdpo", "parl_bilevel", "prs"}
REWARD = """
def even(completions, log_extra, **columns):
    digits = [sum(letter.isdigit() for letter in text) for text in completions]
    for name, values in {"profiled": [n % 3 / 4 for n in digits], "decoy": [False] * len(digits),
                         "speedup": [1 + n / 4 for n in digits],
                         "preference": [n % 3 for n in digits]}.items():
        log_extra(name, values)
    return [float(n % 2 == 0) for n in digits]
"""
# Runs that are made before.
BEFORE = {"sapo_swarm": """sapo_swarm(store="swarm", node="other")"""}


def started(words, folder):
    with graders_copied():
        return loop.start(settings_of(list(words), {}, None), folder)


def gone(run, look):
    """The run after it has ended; look: is handed its metrics after each step."""
    watcher = Watcher(lambda run: look(run, watcher.seen[-1]))
    try:
        loop.go(run, watcher, validator(1, (1,), run.config.seed))
    finally:
        run.close()


@pytest.mark.parametrize("recipe", REGIMES)
def test_it_is_itself_then(recipe, tmp_path, monkeypatch):
    regime, parent = REGIMES[recipe], catalogue.find("recipe", recipe).line("Parent")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        relatives,
        "watching",
        lambda run, step, rng_of: SameRows(
            rng_of, dict(run.state), run.world.services, run.world.pool
        ),
    )
    sizes = (*QUIET, *FEWER.get(recipe, FEW))
    if recipe in MEASURED:
        (tmp_path / "rewards.py").write_text(REWARD, encoding="utf-8")
        sizes = (*sizes, "reward.functions=rewards.py:even")
    if recipe in BEFORE:
        gone(started((BEFORE[recipe], *sizes, "training.steps=1"), tmp_path / "b"), lambda *_: None)
    stages, values = [], []

    def look(run, metrics):
        if run.likeness is not None and run.likeness.step == run.done:
            stages.extend(filter(None, [run.likeness.apart.get(parent)]))
        values.append(metrics.get(regime.metric, regime.level))
        run.stop_asked = bool(stages) and any(map(regime.shown_by, values))

    gone(started((regime.words[0], *sizes, *regime.words[1:]), tmp_path / "run"), look)
    assert stages, f"{recipe} by {regime.words}: no step is other than its parent's"
    assert any(map(regime.shown_by, values)), f"{regime.metric} is at rest: {values}"


@pytest.mark.parametrize("recipe", ["brorl", "dart", "vcpo"])
def test_what_is_in_full_then_is_at_rest_else(recipe, tmp_path):
    """The recipe differs from its parent all the same: the metric is what the setting adds."""
    regime, seen = REGIMES[recipe], []
    assert recipe in IN_FULL
    run = started((recipe, *QUIET, *FEW, "training.steps=2"), tmp_path / "run")
    gone(run, lambda _, metrics: seen.append(metrics.get(regime.metric, regime.level)))
    assert not any(map(regime.shown_by, seen))


def test_every_line_names_a_metric_that_the_recipe_logs_itself_or_shares():
    known = {e.name for e in catalogue.recipes()
             if e.line("Differs once") or e.line("In full once")}  # fmt: skip
    assert known == REGIMES.keys(), "write `(METRIC > LEVEL)` at the end of the line"
    assert not IN_FULL & {e.name for e in catalogue.recipes() if e.line("Differs once")}
    regime = REGIMES["opsm"]
    assert regime.words == (
        "opsm", "plan.num_minibatches=8", "engine.staleness=4", "training.lr=3e-3"
    )  # fmt: skip
    assert (regime.metric, regime.sign, regime.level) == ("opsm/dropped_mean", ">", 0.0)
    assert REGIMES["ada_grpo"].words == ('ada_grpo(marks=("*", "+"))',)
    assert REGIMES["gdpo"].words == ("gdpo",)
