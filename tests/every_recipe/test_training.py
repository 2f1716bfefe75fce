"""Every recipe trains, and a step does not depend on how its rows are split into micro-batches."""

import math

import pyarrow.parquet as pq
import pytest
from metrics_page import undocumented
from short_runs import Logged, make_lab, run_of, settings_for

from strop import catalogue, notation

NAMES = [entry.name for entry in catalogue.recipes()]
FEW, LONGEST = 3, 20
# Numbers of a method that count steps until something of it ends, leaves or comes back. (Warm-ups
# do too, and are left out of short runs.)
LASTING = ("window", "max_age", "every", "after", "interval")
# What depends on the machine, or on the split itself.
APART = ("timing_s/", "perf/", "step_time")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return make_lab(tmp_path_factory.mktemp("lab"))


def steps_of(recipe):
    """Few, or two more than what lasts longest in the method, so that its end shows."""
    numbers = notation.recipe(recipe).paths().items()
    lasts = [n for path, n in numbers if path.endswith(LASTING) and isinstance(n, int)]
    return max([FEW, *(n + 2 for n in lasts if FEW <= n <= LONGEST)])


def trained(lab, recipe, folder, token_budget, steps=0, rollouts_every=0):
    """The metrics of a run, or of its first steps."""
    training = {"steps": steps_of(recipe), "save_every": 0, "rollouts_every": rollouts_every,
                "token_budget": token_budget}  # fmt: skip
    lines = run_of(settings_for(lab, recipe, training=training), folder, steps)
    return [line for line in lines if line["step"] > 0]


def test_what_lasts_longer_than_the_few_steps_is_given_more():
    given = {name: steps_of(name) for name in NAMES}
    assert {name for name in NAMES if given[name] > FEW} >= {"mssr", "spear", "spo_tree"}
    assert given["spear"] == 10 + 2  # its oldest rollouts leave after 10 steps


@pytest.mark.parametrize("recipe", NAMES)
def test_a_run_stays_finite_and_a_step_in_small_micro_batches_is_the_same(
    recipe, lab, tmp_path, tmp_path_factory
):
    large = trained(lab, recipe, tmp_path / "large", 4096)
    Logged(tmp_path_factory).keep(recipe, large)
    assert [line["step"] for line in large] == list(range(1, steps_of(recipe) + 1))
    small = trained(lab, recipe, tmp_path / "small", 32, steps=1, rollouts_every=1)
    assert [line["step"] for line in small] == [1]
    for line in (*large, *small):
        assert all(value is not None and math.isfinite(value) for value in line.values())
    assert any(line["grad_norm"] > 0 for line in large)
    assert small[0].keys() == large[0].keys()
    assert not undocumented(small[0]), "docs/METRICS.md does not explain what it logs"
    for name, value in small[0].items():
        if not name.startswith(APART):
            assert value == pytest.approx(large[0][name], rel=2e-3, abs=2e-5), name
    looked_at = pq.read_table(tmp_path / "small" / "tokens" / "step-000001.parquet").to_pylist()
    weights = [w for row in looked_at for w in row.get("weight_T", ()) if w is not None]
    assert looked_at
    assert all(math.isfinite(weight) for weight in weights)
