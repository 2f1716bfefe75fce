"""The tokens that a run records: the numbers of the step, and a step that is the same without."""

import re
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from models import without_times
from runs import Runner

from strop import functional as F
from strop.training.learner import kernel, token_trace
from strop.training.learner.token_trace import ROW, Tokens, first_groups
from strop.training.record.run_folder import _flat
from strop.training.step import train_step

SEVERAL = {"plan.num_epochs": 2, "plan.num_minibatches": 2}


def table_of(folder, step):
    return pq.read_table(folder / "tokens" / f"step-{step:06d}.parquet").to_pylist()


def rollouts_of(folder, step):
    return pq.read_table(folder / "rollouts" / f"step-{step:06d}.parquet").to_pylist()


def raw_of(lab, recipe, inspect=64, **options):
    raw = lab.raw(recipe, training={"steps": 2, "inspect": inspect, "lr": 0.05})
    raw["algorithm"] |= options
    return raw


@pytest.mark.parametrize(
    ("recipe", "options"),
    [("clip_cov", SEVERAL), ("gae", {})],  # of which one needs the whole update at once
)
def test_a_run_is_bit_for_bit_the_same_without(lab, tmp_path, recipe, options):
    found = []
    for inspect in (64, 0):
        folder = tmp_path / str(inspect)
        run = Runner().whole(raw_of(lab, recipe, inspect, **options), folder)
        found.append((without_times(folder), run.loaded.model.state_dict(), run.world.policy))
        assert (folder / "tokens").exists() == bool(inspect)
    (lines, weights, policy), (plain, others, other_policy) = found
    assert lines == plain
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    moments = [p.optimiser.state_dict()["state"] for p in (policy, other_policy)]
    for one, other in zip(*(m.values() for m in moments), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def finished(lab, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens") / "run"
    Runner().whole(raw_of(lab, "grpo", inspect=5), folder)
    return folder


def test_whole_groups_are_kept_and_said_in_their_own_rows(finished):
    rows, rollouts = table_of(finished, 2), rollouts_of(finished, 2)
    assert [row["row"] for row in rows] == [0, 1, 2, 3]  # the next group would make eight
    for row in rows:
        rollout = rollouts[row["row"]]
        answer = [t for t, own in zip(row["text_T"], row["mask_T"], strict=True) if own]
        said = re.sub(r"<\w+>", "", "".join(answer))  # special tokens
        assert said == rollout["completion"]
        assert len(answer) == rollout["length"]
        prompt = row["text_T"][: len(row["text_T"]) - len(answer)]
        assert "".join(prompt) == rollout["prompt"]
        assert row["reward_B"] == pytest.approx(rollout["reward"])
        assert row["parent_B"] == -1
        assert row["group_B"] == 0


def test_the_first_groups_that_fit_are_chosen():
    group_B = torch.tensor([0, 1, 0, 1, 2, 1])
    assert first_groups(group_B, 3, 5).tolist() == [0, 2, 1, 3, 5]
    assert first_groups(group_B, 3, 4).tolist() == [0, 2]
    assert first_groups(group_B, 3, 1).tolist() == [0]  # a first group that is larger is cut
    assert first_groups(group_B, 3, 9).tolist() == [0, 2, 1, 3, 5, 4]


def test_the_advantage_is_kept_after_each_part(finished):
    rows = table_of(finished, 2)
    names = [name for name in rows[0] if name.startswith("advantage/")]
    assert names == [
        "advantage/1 subtract_group_mean", "advantage/2 divide_by_group_std",
        "advantage/3 spread_evenly",
    ]  # fmt: skip
    rewards = torch.tensor([row["reward_B"] for row in rows])
    centred = rewards - rewards.mean()
    scaled = centred / (rewards.std() + 1e-6)
    for name, expected_B in zip(names, (centred, scaled, scaled), strict=True):
        for row, expected in zip(rows, expected_B.tolist(), strict=True):
            for value, own in zip(row[name], row["mask_T"], strict=True):
                assert value == (pytest.approx(expected, abs=1e-5) if own else None)


@pytest.mark.parametrize("recipe", ["gspo(num_minibatches=1)", "grpo(beta=0.1)"])
def test_weights_are_those_of_the_padded_door(lab, tmp_path, recipe):
    """Of the first update: functional.token_weights, by ordinary autograd, on the same columns."""
    run = Runner().start(raw_of(lab, recipe), tmp_path / "run")
    tokens, beta = Tokens(64), "beta" in recipe
    try:
        for step in (1, 2):  # a second step has a reference that differs
            tokens = Tokens(64)
            run.world.services.begin_step(step)
            batch = train_step(run.world, run.algorithm, {}, step, (tokens,)).batch
    finally:
        run.close()
    kept, mask_T = tokens.kept(batch), batch["mask_T"]
    width = int(batch["length_B"].max())
    mask = torch.arange(width) < batch["length_B"][:, None]

    def padded(column_T):
        found = torch.zeros(mask.shape, dtype=column_T.dtype)
        found[mask] = column_T[mask_T]
        return found

    logp = padded(kept["logp_old_T"])
    given = {"logp": logp, "logp_old": logp, "advantages": padded(batch["advantage_T"])}
    if beta:
        given["logp_ref"] = padded(batch["logp_ref_T"])
    name, params = recipe.partition("(")[0], {"beta": 0.1} if beta else {}
    wanted = F.inputs(name, "policy_loss", params)
    given = {name: value for name, value in given.items() if name in wanted}
    if "groups" in wanted:
        given["groups"] = batch["group_B"]
    if "length" in wanted:
        given["length"] = 6
    expected = F.token_weights(name, **given, mask=mask, params=params)
    own = padded(kept["weight_T"]).nan_to_num()  # void where a group had no signal
    assert torch.allclose(own, expected, atol=1e-6), (own - expected).abs().max()
    assert own.abs().sum() > 0


@pytest.mark.parametrize(("recipe", "options"), [("gspo", SEVERAL), ("clip_cov", {})])
def test_weights_are_those_that_the_model_was_given(lab, tmp_path, monkeypatch, recipe, options):
    """Also of bounds that draw at random, and of the first update that a token takes part in."""
    given, inside = {}, []
    adjoints, updated = kernel.adjoints, Tokens.updated

    def told(terms, view, columns, tally, **special):
        loss, found = adjoints(terms, view, columns, tally, **special)
        if not inside:
            rows = view.batch[ROW][view.rows].tolist()
            for row, value in zip(rows, found["logp_T"].tolist(), strict=True):
                given.setdefault(row, -value)
        return loss, found

    def looking(self, *arguments):
        inside.append(1)
        updated(self, *arguments)
        inside.pop()

    run = Runner().start(raw_of(lab, recipe, **options), tmp_path / "run")
    monkeypatch.setattr(kernel, "adjoints", told)
    monkeypatch.setattr(Tokens, "updated", looking)
    tokens = Tokens(64)
    try:
        run.world.services.begin_step(1)
        train_step(run.world, run.algorithm, {}, 1, (tokens,))
    finally:
        run.close()
    weight_T = tokens.columns["weight_T"]
    assert given.keys() == set((~weight_T.isnan()).nonzero().squeeze(1).tolist())
    own = weight_T[list(given)]
    assert torch.allclose(own, torch.tensor(list(given.values())), atol=1e-7, rtol=1e-5)
    assert own.abs().sum() > 0


def test_a_weight_is_the_product_of_its_waterfall(lab, tmp_path):
    Runner().whole(raw_of(lab, "grpo(clip_high=0.0001)", **SEVERAL), tmp_path / "run")
    held = clipped = 0
    for row in table_of(tmp_path / "run", 2):
        for t, own in enumerate(row["mask_T"]):
            if not own or row["gate_T"][t] is None:
                continue
            ratio = torch.tensor(row["log_ratio_T"][t]).exp().item()
            product = row["advantage_T"][t] * ratio * row["gate_T"][t] * row["share_T"][t]
            assert row["weight_T"][t] == pytest.approx(product, rel=1e-4, abs=1e-9)
            assert row["updates_T"][t] == 2
            held += row["gate_T"][t] == 1
            clipped += row["clipped_T"][t]
            if row["last_log_ratio_T"][t] > 0.001 and row["advantage_T"][t] > 0:
                assert row["clipped_T"][t] >= 1
    assert held > 0
    assert clipped > 0


def test_a_token_is_held_where_its_gate_is_0_or_the_bound_says_so(monkeypatch):
    # free, without a weight, outside the term's rows, and of advantage 0; the bound held the last 2
    seen = {
        "a:rows_T": torch.tensor([True, True, False, True]), "a:share_T": torch.full((4,), 0.5),
        "log_ratio_T": torch.tensor([1.0, 2.0, 1.0, 1.0]).log(),
        "advantage_T": torch.tensor([3.0, 1.0, 1.0, 0.0]),
    }  # fmt: skip
    metrics = {"clip_ratio/region_mean": torch.tensor([0.0, 0.0, 1.0, 1.0])}
    given = {
        "objective_of": lambda *_, **__: (seen, SimpleNamespace(metrics=metrics)),
        "number_of": lambda term: 2.0,
    }
    for name, function in given.items():
        monkeypatch.setattr(kernel, name, function)
    monkeypatch.setattr(token_trace, "advantage_of", lambda term: "advantage_T")
    found, clipped_T = token_trace._bounded(
        SimpleNamespace(name="a", ratio="given"), kernel.View({}), {"logp_T": torch.zeros(4)},
        torch.tensor([1.5, 0.0, 0.0, 0.0]), lambda *_: None, 0,
    )  # fmt: skip
    assert clipped_T.tolist() == [False, True, False, True]
    gates = found["gate_T"].nan_to_num(9.0).tolist()
    assert gates == [0.5, 0.0, 9.0, 9.0]  # 1.5 / (2 * 0.5 * 3 * 1) = 0.5
    assert found["coef_T"].tolist() == [2.0] * 4


def test_the_weight_of_a_term_with_a_coefficient_is_the_product_with_it(lab, tmp_path):
    raw = raw_of(lab, "grpo(beta=0.1)", **{"terms.policy.coef": 0.5}, **SEVERAL)
    Runner().whole(raw, tmp_path / "run")
    seen = 0
    for row in table_of(tmp_path / "run", 2):
        for t, gate in enumerate(row["gate_T"]):
            if gate is None:
                continue
            ratio = torch.tensor(row["log_ratio_T"][t]).exp().item()
            product = row["advantage_T"][t] * ratio * gate * row["share_T"][t] * row["coef_T"][t]
            assert row["weight/policy"][t] == pytest.approx(product, rel=1e-4, abs=1e-9)
            seen += row["weight_T"][t] != pytest.approx(product, rel=1e-4)
    assert seen > 0  # the penalty's weight is added to it


def test_selection_is_kept_part_by_part(lab, tmp_path):
    Runner().whole(raw_of(lab, "entrocraft(h_low=9.0, h_high=9.5)"), tmp_path / "run")
    rows = table_of(tmp_path / "run", 2)
    (name,) = [name for name in rows[0] if name.startswith("selection/")]
    assert name.startswith("selection/1 ")
    for row in rows:
        assert row[name] == row["gradient_T"]
    assert any(not any(row["gradient_T"]) for row in rows)
    assert all(e is not None for row in rows for e, own in zip(
        row["entropy_old_T"], row["mask_T"], strict=True) if own)  # fmt: skip


def test_resuming_cuts_the_tokens_of_later_steps(lab, tmp_path):
    folder, runner = tmp_path / "run", Runner()
    runner.whole(raw_of(lab, "grpo"), folder)
    before = (folder / "tokens" / "step-000001.parquet").read_bytes()
    (folder / "tokens" / "step-000003.unfinished").write_text("")
    (folder / "tokens" / "step-000007.parquet").write_text("")
    run = runner.resume(folder, training={"steps": 3})
    run.close()
    left = sorted(path.name for path in (folder / "tokens").iterdir())
    assert left == ["step-000001.parquet", "step-000002.parquet"]
    assert (folder / "tokens" / "step-000001.parquet").read_bytes() == before


class Bytes:
    """A tokenizer whose tokens are the bytes of UTF-8, but for 300, which is a blank in sentences
    and nothing at their beginning."""

    def decode(self, ids, skip_special_tokens):
        spoken = b"".join(b" " if i == 300 else bytes([i]) for i in ids)
        return spoken.decode(errors="replace").removeprefix(" ")


def test_pieces_put_together_are_the_text(lab):
    from strop.training.services.texts import RunTexts

    texts = RunTexts.__new__(RunTexts)
    texts.tokenizer = Bytes()
    ids = [*"aé€".encode(), 300, *"🙂b".encode()]
    pieces = texts.pieces(ids)
    assert pieces == ["a", "", "é", "", "", "€", " ", "", "", "", "🙂", "b"]
    assert texts.pieces([]) == []
    garbage = texts.pieces([0xC3] * 9)
    assert len(garbage) == 9


@pytest.mark.parametrize(
    ("values", "kept", "found"),
    [
        ([True, False], pa.bool_(), [True, False]),
        ([3, -(2**31) + 1], pa.int32(), [3, -(2**31) + 1]),
        ([3, 2**31], pa.int64(), [3, 2**31]),
        ([0.5, float("nan")], pa.float32(), [0.5, None]),
    ],
)
def test_a_column_is_kept_in_32_bits_where_they_hold_it(values, kept, found):
    column = _flat(torch.tensor(values))
    assert (column.type, column.to_pylist()) == (kept, found)
    where = _flat(torch.tensor([0.5, 1.0]), torch.tensor([False, True]))
    assert where.to_pylist() == [None, 1.0]
