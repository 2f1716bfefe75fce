"""Every recipe trains, and a step does not depend on how its rows are split into micro-batches."""

import copy
import math

import pyarrow.parquet as pq
import pytest
from metrics_page import pattern_in, undocumented
from short_runs import Logged, make_lab, run_of, settings_for

from strop.catalogue import catalogue
from strop.method import notation
from strop.method.own import own_metrics
from strop.training import loop
from strop.training.record import likeness

ENTRIES = catalogue.recipes()
NAMES = [entry.name for entry in ENTRIES]
FEW, LONGEST = 2, 20
# Numbers of a method that count steps until something of it ends, leaves or comes back. (Warm-ups
# do too, and are left out of short runs.)
LASTING = ("window", "max_age", "every", "after", "interval")
# Metrics that depend on the machine, or on the split itself.
APART = ("timing_s/", "perf/", "step_time")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return make_lab(tmp_path_factory.mktemp("lab"))


def steps_of(recipe):
    """Few, or two more than what lasts longest in the method, so that its end shows."""
    numbers = notation.recipe(recipe).paths().items()
    lasts = [n for path, n in numbers if path.endswith(LASTING) and isinstance(n, int)]
    return max([FEW, *(n + 2 for n in lasts if FEW < n <= LONGEST)])


class Split:
    """A run's `train_step`, which takes the first step twice: with its rows in small micro-batches,
    and then, from where that began, as the run takes it and goes on.
    """

    def __init__(self) -> None:
        self.small: dict[str, float] = {}  # what the first one measured
        self.large: dict[str, float] = {}  # and the second
        self.real = loop.train_step

    def __call__(self, world, method, state, step, tokens=None):
        if step == 1:
            models = [each for each in (world.policy, world.reference) if each is not None]
            changed = [*(each.model for each in models), world.policy.optimiser, world.critic]
            changed = [each for each in changed if each is not None]
            kept = copy.deepcopy([each.state_dict() for each in changed])
            copies = copy.deepcopy(world.copies.copies) if world.copies is not None else {}
            with pytest.MonkeyPatch.context() as patch:
                for each in models:
                    patch.setattr(each, "token_budget", 32)
                self.small = self.real(world, method, state, step, tokens).metrics
            for each, content in zip(changed, kept, strict=True):
                each.load_state_dict(content)
            for name, weights in copies.items():
                world.copies.load(name, weights)
            world.engine.load_weights(None, 0)
            world.services.begin_step(step)
        stepped = self.real(world, method, state, step, tokens)
        self.large = self.large or dict(stepped.metrics)
        return stepped


def test_what_lasts_longer_than_the_few_steps_is_given_more():
    given = {name: steps_of(name) for name in NAMES}
    assert {name for name in NAMES if given[name] > FEW} >= {"mssr", "spear", "spo_tree"}
    assert given["spear"] == 10 + 2  # its oldest rollouts leave after 10 steps


@pytest.mark.parametrize("recipe", NAMES)
def test_a_run_stays_finite_and_a_step_in_small_micro_batches_is_the_same(
    recipe, lab, tmp_path, tmp_path_factory, monkeypatch
):
    split = Split()
    monkeypatch.setattr(loop, "train_step", split)
    training = {"steps": steps_of(recipe), "save_every": 0, "rollouts_every": steps_of(recipe),
                "token_budget": 4096, "debug": True}  # fmt: skip
    # In float64, where nothing is chosen by rounding.
    raw = settings_for(lab, recipe, training=training)
    raw["model"]["dtype"] = "float64"
    lines = run_of(raw, tmp_path)
    lines = [line for line in lines if line["step"] > 0]
    Logged(tmp_path_factory).keep(recipe, lines)
    assert [line["step"] for line in lines] == list(range(1, steps_of(recipe) + 1))
    for line in (split.small, *lines):
        assert all(value is not None and math.isfinite(value) for value in line.values())
    assert any(line.get("grad_norm", 0) > 0 for line in lines)  # none: nothing to learn from
    assert split.small.keys() == split.large.keys()
    assert not undocumented(lines[0]), "docs/METRICS.md does not explain what it logs"
    entry = next(entry for entry in ENTRIES if entry.name == recipe)
    parent, logged = entry.line("Parent"), set().union(*lines)
    theirs = notation.recipe(parent) if parent in NAMES else None
    own = own_metrics(notation.recipe(recipe), theirs)  # none: test_own_metrics.py says why
    assert not own or any(pattern_in(name).fullmatch(key) for name in own for key in logged)
    for name, value in split.small.items():
        if not name.startswith(APART):
            assert value == pytest.approx(split.large[name], rel=1e-6, abs=1e-9), name
    text, apart = likeness.read(tmp_path)
    if text and not apart.get(parent):
        assert entry.line("Differs once"), f"{text} Say in its docstring when it differs"
    (table,) = (tmp_path / "tokens").iterdir()
    looked_at = pq.read_table(table).to_pylist()
    weights = [w for row in looked_at for w in row.get("weight_T", ()) if w is not None]
    assert looked_at
    assert all(math.isfinite(weight) for weight in weights)
