"""The values of a sweep, by hand; how arguments become combinations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.cli.sweep import swept
from strop.comparison.values import Spread, combinations, is_range, settings_in, spread
from strop.support.errors import UserError


def test_a_grid_keeps_what_was_written() -> None:
    assert spread("training.lr=grid(1e-5, 1e-4,1e-5)") == Spread(
        "training.lr", ("1e-5", "1e-4"), False
    )
    given = spread(
        "bound=grid(clip_both_sides(clip_low=0.1, clip_high=0.3), pass_gradient_through)"
    )
    assert given is not None
    assert given.values == ("clip_both_sides(clip_low=0.1, clip_high=0.3)", "pass_gradient_through")
    quoted = spread("""recipe=grid("a, b", 'c')""")
    assert quoted is not None
    assert quoted.values == ('"a, b"', "'c'")


def test_log_has_equal_factors() -> None:
    found = spread("training.lr=log(1e-5,1e-3,5)")
    assert found is not None
    # 10^(-5 + i / 2)
    assert found.values == ("1e-05", "3.16e-05", "0.0001", "0.000316", "0.001")
    whole = spread("sampling.num_rollouts=log(2,32,5)")
    assert whole is not None
    assert whole.values == ("2", "4", "8", "16", "32")
    one = spread("x=log(1,2,1)")
    assert one is not None
    assert one.values == ("1",)


def test_random_draws_lie_in_their_range_and_repeat() -> None:
    found = spread("seed=random(3,9,40)", 5)
    assert found is not None
    assert found == spread("seed=random(3,9,40)", 5)
    assert found != spread("seed=random(3,9,40)", 6)
    assert {int(v) for v in found.values} <= set(range(3, 10))
    small = spread("training.lr=random(1e-6,1e-2,400,log)", 0)
    assert small is not None
    values = [float(v) for v in small.values]
    assert 1e-6 <= min(values) < 1e-5
    assert 0.4 < sum(v < 1e-4 for v in values) / 400 < 0.6  # half of the way in the logarithm
    even = spread("training.lr=random(0.0,1.0,400)", 0)
    assert even is not None
    assert 0.4 < sum(float(v) < 0.5 for v in even.values) / 400 < 0.6


def test_other_text_is_no_spread() -> None:
    for text in ("grpo", "training.lr=1e-3", "training.lr=linear(1e-3, 0)", "grid(1,2)"):
        assert spread(text) is None


def test_grids_are_combined_and_draws_go_together() -> None:
    a, b = Spread("a", ("1", "2"), False), Spread("b", ("x", "y"), False)
    r, s = Spread("r", ("5", "6"), True), Spread("s", ("7", "8"), True)
    assert combinations([a, b]) == [
        (("a", "1"), ("b", "x")), (("a", "1"), ("b", "y")),
        (("a", "2"), ("b", "x")), (("a", "2"), ("b", "y")),
    ]  # fmt: skip
    assert combinations([r, s]) == [(("r", "5"), ("s", "7")), (("r", "6"), ("s", "8"))]
    assert combinations([r, a, s])[:2] == [
        (("r", "5"), ("a", "1"), ("s", "7")), (("r", "6"), ("a", "1"), ("s", "8")),
    ]  # fmt: skip
    assert combinations([Spread("r", ("5", "5"), True)]) == [(("r", "5"),)]


def test_arguments_become_combinations() -> None:
    methods, title = swept(
        ["grpo", "training.lr=grid(1e-4,1e-3)", "seed=3", "sampling.num_rollouts=grid(4,8)"], 0
    )
    assert title == "grpo seed=3"
    assert methods[0] == (
        "training.lr=1e-4 sampling.num_rollouts=4",
        ["grpo", "seed=3", "training.lr=1e-4", "sampling.num_rollouts=4"],
        (("training.lr", "1e-4"), ("sampling.num_rollouts", "4")),
        "",
    )
    assert len(methods) == 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["training.lr=grid(1,2)"], "name one method"),
        (["grpo", "rloo", "training.lr=grid(1,2)"], "name one method"),
        (["grpo", "training.lr=1e-3"], "nothing is swept"),
        (["grpo", "a=grid(1,2)", "a=grid(3)"], "a is swept twice"),
        (["grpo", "a=grid(1,2)", "a=3"], "a is swept and has one value too"),
        (["grpo", "a=random(1,2,3)", "b=random(1,2,4)"], "need one count, not a 3, b 4"),
        (["grpo", "a=grid()"], "a=grid takes values"),
        (["grpo", "a=log(1,2)"], "a=log takes LOW, HIGH and how many"),
        (["grpo", "a=log(1,2,3,4)"], "a=log takes LOW, HIGH and how many"),
        (["grpo", "a=log(0,2,3)"], "LOW above 0"),
        (["grpo", "a=random(2,1,3)"], "LOW must be below HIGH"),
        (["grpo", "a=random(1,2,0)"], "the count 1 or more"),
    ],
)
def test_refusals_of_values(arguments: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        swept(arguments, 0)


@given(st.integers(1, 12), st.floats(-5, 5), st.floats(0.1, 9))
def test_tuned_settings_take_the_middle_of_every_piece_once(
    count: int, low: float, wide: float
) -> None:
    rows = settings_in([f"a={low}..{low + wide}", "b=1e-4..1e-2,log"], count)
    middles = [(2 * i + 1) / (2 * count) for i in range(count)]
    a, b = (sorted(float(dict(row)[name]) for row in rows) for name in "ab")
    assert a == pytest.approx([low + wide * x for x in middles], rel=6e-3, abs=6e-3)
    assert b == pytest.approx([1e-4 * 100**x for x in middles], rel=6e-3)


def test_methods_that_share_a_range_try_the_same_values_of_it() -> None:
    # thirds of 0 to 3 and of 1 to 1000: middles 0.5, 1.5, 2.5 and 10^0.5, 10^1.5, 10^2.5
    alone = settings_in(["x=0..3.0"], 3)
    both = settings_in(["x=0..3.0", "n=1..1000,log"], 3)
    assert {value for ((_, value),) in alone} == {"0.5", "1.5", "2.5"}
    assert [row[:1] for row in both] == alone
    assert {dict(row)["n"] for row in both} == {"3", "32", "316"}  # whole bounds, whole values


def test_what_is_no_range_is_refused_or_left_alone() -> None:
    paths = ["data.files=../x.jsonl", "model.name=../../m", "data.files=runs/../x.jsonl"]
    assert not any(map(is_range, ["grpo", "training.lr=1e-3", "x=1..2,3", "x=a..b", *paths]))
    for text, told in [
        ("x=2..1", "LOW must be below HIGH"),
        ("x=0..1,log", "equal factors need LOW above 0"),
    ]:
        with pytest.raises(UserError, match=told):
            settings_in([text], 2)
    with pytest.raises(UserError, match="holds fewer than 4 settings"):
        settings_in(["x=1..2"], 4)
    with pytest.raises(UserError, match="x has two ranges"):
        settings_in(["x=1.0..2", "x=1.0..3"], 2)


def test_values_stay_inside_their_bounds_and_apart() -> None:
    for text in ("a=random(0.9991,0.9999,5)", "a=log(1.234e-4,1.236e-4,5)", "a=log(0.12345,1.2,3)"):
        found = spread(text)
        assert found is not None
        low, high = (float(piece) for piece in text.partition("(")[2].split(",")[:2])
        assert all(low <= float(value) <= high for value in found.values)
        assert len(set(found.values)) == int(text[-2])
    assert len(settings_in(["x=0.999..0.9999"], 4)) == 4
    assert spread("a=log(1e-5,1e-3,3)").values == ("1e-05", "0.0001", "0.001")  # three are enough
