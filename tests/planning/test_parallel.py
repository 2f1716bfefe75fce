"""Memory and seconds of layouts, worked out by hand, and invariants with more GPUs."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from configurations import QWEN3_06B, QWEN3_30B_A3B

from strop import UserError
from strop.planning import calibrated
from strop.planning.assumed import MOST_TRIED, Assumed, Only
from strop.planning.calibrated import calibrate
from strop.planning.course import Speed
from strop.planning.hardware import GPUS, Assumptions, gpu_of
from strop.planning.model_costs import model_of
from strop.planning.parallel import Case, Trainer, engine, memory_of, speed_of, trainer
from strop.planning.text import bounds
from strop.planning.work import Costs, Layout, Work

SMALL = model_of(QWEN3_06B, "small", Path("config.json"))
EXPERTS = model_of(QWEN3_30B_A3B, "experts", Path("config.json"))
H100 = GPUS["H100"]
NOTHING = Assumptions(step_seconds=0, decode_seconds=0, hop_seconds=0, network_seconds=0)


def case(model=SMALL, assumed=NOTHING, longest=1000, held=500.0, passes=0.0):
    return Case(model, H100, assumed, longest, held, passes)


def assumed(groups, num_groups, model=SMALL, **more):
    lengths = np.concatenate(groups)
    return Assumed(case(model, longest=int(lengths.max()), held=float(lengths.mean()), **more),
                   Work(tuple(groups), num_groups, 0.0, 1.0, 1))  # fmt: skip


def test_memory_of_sharded_training():
    found = memory_of(case(), Trainer(8, 1, 1, 1, 1, gathered=True))
    share = 596_049_920 / 8
    assert found["weights"] == pytest.approx(2 * share)
    assert found["gradients"] == pytest.approx(4 * share)
    assert found["optimizer"] == pytest.approx(12 * share)
    assert found["gathered"] == pytest.approx(2 * 596_049_920 * 2 / 28)
    assert found["logits"] == pytest.approx(1000 * 151936 * 10)
    within = 8 * 1024 + 2 * (16 + 8) * 128 + 3 * 3072
    assert found["activations"] == pytest.approx(1000 * (28 * 1024 + within) * 2)


def test_memory_of_other_layouts():
    whole = memory_of(case(), Trainer(8, 1, 1, 1, 1, gathered=False))
    assert whole["weights"] == pytest.approx(2 * 596_049_920)
    assert whole["gradients"] == pytest.approx(4 * 596_049_920)
    assert whole["optimizer"] == pytest.approx(12 * 596_049_920 / 8)
    parts = memory_of(case(), Trainer(8, 2, 2, 2, 1, gathered=False))
    assert parts["weights"] == pytest.approx(2 * 596_049_920 / 4)  # tensor 2, pipeline 2
    assert parts["logits"] == pytest.approx(whole["logits"] / 4)  # tensor 2, context 2
    spread = memory_of(case(EXPERTS), Trainer(8, 1, 1, 1, 8, gathered=False))
    dense = EXPERTS.parameters - EXPERTS.all_experts
    assert spread["weights"] == pytest.approx(2 * (dense + EXPERTS.all_experts / 8))


def test_an_engine():
    made = engine(case(), 2, 0.0)
    assert made is not None
    assert made.memory["weights"] == pytest.approx(596_049_920)
    assert made.slots == 1024
    room = 80e9 * 0.9 - 596_049_920 - 1024 * 151936 * 10 / 2
    few = engine(case(held=1e6, longest=10**6), 2, 0.0)
    assert few is not None
    assert few.slots == int(room / (114_688 / 2 * 1e6))
    assert engine(case(), 2, 80e9) is None
    assert engine(case(longest=10**9), 2, 0.0) is None
    assert engine(case(), 3, 0.0) is None  # 16 heads


def test_seconds_of_a_decode_step():
    speed = speed_of(case(), 1)
    reading = 3.35e12 * NOTHING.bandwidth
    assert speed.of_rows(np.array([1]))[0] == pytest.approx(596_049_920 * 2 / reading)
    assert speed.cached == pytest.approx(114_688 / reading)
    many = speed.of_rows(np.array([10_000]))[0]
    assert many == pytest.approx(10_000 * 2 * 596_049_920 / (989e12 * NOTHING.mfu_decode))
    # one row meets 8 of 128 experts, many rows all of them
    sparse = speed_of(case(EXPERTS), 1)
    lookup = 151936 * 2048
    one, all_ = sparse.of_rows(np.array([1, 500]))
    assert one == pytest.approx((EXPERTS.active - lookup) * 2 / reading)
    assert all_ == pytest.approx((EXPERTS.parameters - lookup) * 2 / reading)


def test_seconds_of_training():
    found = trainer(case(), Trainer(1, 1, 1, 1, 1, gathered=True), 1e6)
    assert found is not None
    # a forward, a backward and a repeated forward pass
    rate = 989e12 * NOTHING.mfu
    assert found.token == pytest.approx(4 * 2 * 596_049_920 / rate)
    assert found.pair == pytest.approx(4 * 4 * 16 * 128 * 28 / 2 / rate)
    sizes = np.array([100.0, 300.0])
    each = found.token * sizes + found.pair * sizes**2
    assert found.seconds(sizes, 1) == pytest.approx(each.sum() + found.update)
    four = trainer(case(), Trainer(4, 1, 1, 1, 1, gathered=True), 1e6)
    assert four is not None
    assert four.seconds(sizes, 1) >= each.max()  # nobody shares an answer


def test_a_pipeline_waits_at_its_ends():
    alone = trainer(case(), Trainer(4, 1, 1, 1, 1, gathered=False), 8000)
    stages = trainer(case(), Trainer(4, 1, 1, 4, 1, gathered=False), 8000)
    assert alone is not None
    assert stages is not None
    # 8 micro-batches of 1000 tokens and 4 stages
    assert stages.token == pytest.approx(alone.token / 4 * 11 / 8)


def test_more_gpus_are_never_slower_with_answers_of_one_length():
    some = assumed([np.full(8, 500)] * 4, 64)
    for kind in (Layout(1, 1), Layout(1, 1, False, 1)):
        found = [some.best(gpus, kind) for gpus in (2, 4, 8, 16, 32)]
        seconds = [each.step_seconds for each in found if each is not None]
        assert len(seconds) == 5
        assert all(more <= fewer * 1.05 for fewer, more in pairwise(seconds)), seconds


def test_the_tail_decides_a_synchronous_step():
    even = assumed([np.full(8, 500)] * 4, 64)
    ragged = assumed([np.array([400] * 7 + [1200])] * 4, 64)  # as many tokens
    plain, tail = (each.best(64, Layout(1, 1)) for each in (even, ragged))
    assert plain is not None
    assert tail is not None
    assert tail.step_seconds > 1.3 * plain.step_seconds


def test_every_layout_fits():
    some = assumed([np.full(8, 2000)] * 4, 64, EXPERTS)
    found = some.layouts(16, [1], 1.0)
    assert [each.layout.name for each in found] == [
        "synchronous", "partial", "async 1", "async 1, partial",
    ]  # fmt: skip
    for each in found:
        assert each.sharing is not None
        assert max(each.sharing.peaks) * 2**30 <= some.case.room * (1 + 1e-9)
        assert each.layout.workers == 16
        assert sum(each.shares[n] for n in ("generating", "grading", "training", "idle")) == (
            pytest.approx(1)
        )


def test_what_does_not_fit_is_told_with_the_least_that_does():
    some = assumed([np.full(8, 2000)] * 4, 64, EXPERTS)
    with pytest.raises(UserError, match=r"does not fit into 2 H100.*; it needs at least") as error:
        some.layouts(2, [1], 0.0)
    least = int(str(error.value).split()[-1])
    assert some.fits(least)
    assert not any(some.fits(count) for count in range(2, least))
    assert some.layouts(least, [], 0.0)
    far = replace(some, case=replace(some.case, longest=10**9))
    with pytest.raises(
        UserError,
        match=f"does not fit into any number of H100 up to {MOST_TRIED * H100.per_node:d} ",
    ):
        far.layouts(2, [1], 0.0)


def test_training_moves_away_where_generating_needs_the_room():
    some = replace(assumed([np.full(8, 8000)] * 4, 64, EXPERTS), only=Only(engine=2))
    crowded, roomy = (some.best(gpus, Layout(1, 1)) for gpus in (16, 256))
    assert crowded is not None
    assert roomy is not None
    # 16 GPUs: 30 GB of weights and 34 of training leave no room for the caches of 64 answers
    assert crowded.sharing is not None
    assert crowded.sharing.engine.offload
    assert roomy.sharing is not None
    assert not roomy.sharing.engine.offload


def test_kinds_and_assumptions_are_named():
    assert gpu_of("h200") is GPUS["H200"]
    with pytest.raises(UserError, match="there are A100, B200"):
        gpu_of("H900")
    assert Assumptions().with_(["mfu=0.3"]).mfu == 0.3
    for wrong, why in (
        ("mfy=0.3", "did you mean mfu"), ("mfu", "give NAME=NUMBER"), ("mfu=2", "at most 1"),
        ("bandwidth=0", "above 0"), ("step_seconds=-1", "0 or more"), ("mfu=nan", "above 0"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=why):
            Assumptions().with_([wrong])
    assert all(gpu.source for gpu in GPUS.values())


def test_what_a_step_takes_beside_its_tokens():
    some = assumed([np.full(8, 500)] * 4, 64, assumed=replace(NOTHING, step_seconds=3.0))
    some = replace(some, work=replace(some.work, updates=2))
    made = engine(some.case, 1, 0.0)
    found = some.trainer(8)
    assert made is not None
    assert found is not None
    costs = some.costs(made, found, shared=True)
    assert costs.rest == pytest.approx(3 + 2 * found.update + 2 * 596_049_920 / some.case.link(8))
    # weights, gradients and optimiser's state are read and written: 2 + 4 + 12 bytes
    alone = trainer(case(), Trainer(1, 1, 1, 1, 1, gathered=True), 1e6)
    assert alone is not None
    moved = 2 * 18 * 596_049_920
    assert alone.update == pytest.approx(moved / (3.35e12 * NOTHING.bandwidth))


def test_seconds_of_what_a_layer_sends():
    two = trainer(case(passes=1.0), Trainer(2, 2, 1, 1, 1, gathered=False), 1e6)
    assert two is not None
    # of each of 28 layers twice, in five passes: one more repeats it, one is the reference's
    sent = 28 * 2 * 2 * 0.5 * 1024 * 2 / case().link(2)
    computed = 5 * 2 * 596_049_920 / (989e12 * NOTHING.mfu * 2)
    assert two.token == pytest.approx(computed + 4 * sent)
    assert computed > 4 * sent
    assert two.bound == "arithmetic"
    stages = trainer(case(), Trainer(4, 1, 1, 4, 1, gathered=False), 1000)
    assert stages is not None
    assert stages.bound == "the pipeline's ends"  # one micro-batch: three parts of four
    both = trainer(case(), Trainer(4, 2, 1, 2, 1, gathered=False), 2000)
    assert both is not None
    assert both.bound == "arithmetic"  # two: its ends are half of 2.7e-6 and 0.6e-6 s a token


def test_a_layout_is_named_by_what_it_splits():
    assert Trainer(8, 2, 1, 1, 1, gathered=True).name == "tp2 dp4"
    assert Trainer(8, 2, 2, 2, 1, gathered=False).name == "tp2 cp2 pp2 dp1 zero1"


def test_a_run_is_compared_with_what_is_assumed_at_its_rows(monkeypatch):
    """Measured steps take 1 s and a row 1 s; in 4 slots are the 4 of 6 answers that fit.

    Where others train meanwhile, both take twice as long.
    """
    plan, work = case(), Work((np.array([10, 20]),), 3, 5.0, 1.0, slots=4)
    measured = SimpleNamespace(
        costs=Costs(Speed(1.0, 1.0, 0.0, 1.0, answer=0.5), 0.25, 1.0, 3.0),
        apart=Costs(Speed(2.0, 2.0, 0.0, 1.0, answer=0.5), 0.25, 4.0, 7.0), work=work,
    )  # fmt: skip
    monkeypatch.setattr(calibrated, "measure", lambda folders: measured)
    monkeypatch.setattr(calibrated, "_of_run", lambda case, folder, work: case)
    every, _ = calibrate(plan, [Path("run")])
    found = every.together
    ours = speed_of(plan, 1)
    rows = np.array([4])
    seconds = float(ours.of_rows(rows)[0] + ours.cached * 4 * plan.held)
    assert found.decode == pytest.approx((1.0 + 4.0) / seconds)
    assert found.of(measured.costs, assumed_rest=1.0).rest == 3.0 - 1.0 + 3.0
    assert every.apart.decode == pytest.approx(2 * found.decode)
    some, without = (Assumed(plan, work, calibrations=each) for each in (every, None))
    made, best = engine(plan, 1, 0.0), some.trainer(1)
    assert made is not None
    assert best is not None
    for shared, times in ((True, 1), (False, 4)):
        costs, bare = (each.costs(made, best, shared) for each in (some, without))
        assert costs.token == pytest.approx(times * found.train * bare.token)
        assert costs.rest - bare.rest == (3.0 if shared else 7.0)
    assert [line[:27] for line in every.lines] == [
        "measured in run: a decode s",
        "where others train meanwhil",
    ]


def test_a_run_of_adapters_does_not_say_which_model_it_had(tmp_path):
    with pytest.raises(UserError, match="run has no checkpoint, so its model is unknown"):
        calibrated._of_run(case(), tmp_path / "run", work=None)
    (tmp_path / "run/checkpoints/step-000002").mkdir(parents=True)
    with pytest.raises(UserError, match="run has checkpoints of adapters alone, so its model is"):
        calibrated._of_run(case(), tmp_path / "run", work=None)


@pytest.mark.parametrize(("refresh", "passes"), [(1e-4, 0.0), (0.13, 1.0)])
def test_a_run_that_refreshed_nothing_had_no_forward_pass_beside_the_update(
    tmp_path, refresh, passes
):
    """The stage takes some time also where it has nothing to do."""
    line = {
        "step_time": 1.0, "timing_s/rollout": 0.5, "timing_s/update": 0.4, "num_tokens": 10,
        "timing_s/refresh": refresh, "completions/mean_length": 5.0, "completions/max_length": 8,
        "data/rollouts_sampled": 4, "data/rollouts_kept": 4, "sampling/age_steps": 0.0,
    }  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, **line}) + "\n")
    (tmp_path / "config.toml").write_text('[model]\ndtype = "bfloat16"\n')
    (tmp_path / "checkpoints/step-000001").mkdir(parents=True)
    (tmp_path / "checkpoints/step-000001/config.json").write_text(json.dumps(QWEN3_06B))
    work = Work((np.array([5]),), 4, 3.0, 1.0, 4)
    assert calibrated._of_run(case(), tmp_path, work).passes == passes


@pytest.mark.parametrize(("last", "told"), [(1.0, "memory"), (9.0, "the longest answer")])
def test_generating_waits_for_the_longest_where_most_answers_end_early(last, told):
    """A window of two steps behind the first; the others' rounds would tell otherwise."""
    started = np.zeros(5)
    ended = np.array([1.0, 1.0, last, 1.0, 1.0])
    outcome = SimpleNamespace(
        sharing=SimpleNamespace(engine=SimpleNamespace(bound="memory"),
                                trainer=SimpleNamespace(bound="compute")),
        window=(0, 2), layout=SimpleNamespace(shared=True), started=started, ended=ended,
        drawn=np.ones((5, 2)), trains=started, trained=started + 1, unshared=started,
    )  # fmt: skip
    assert bounds(outcome) == (told, "compute")
