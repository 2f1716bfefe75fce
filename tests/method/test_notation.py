"""The one-line notation: how it is parsed, and that it evaluates nothing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.method import notation, reading, values, writing
from strop.method.part import Use
from strop.method.schedule import Constant, Cosine, Linear, Warmup
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.recipes.entrocraft import entrocraft
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

OWN = """
from dataclasses import dataclass

@dataclass(frozen=True)
class SubtractBest:
    power: float = 1.0

    def __call__(self, advantage_B):
        return advantage_B
"""


def test_recipes_with_parameters():
    assert notation.recipe("grpo") == grpo()
    assert notation.recipe(" grpo(eps=1e-4, std='biased') ") == grpo(eps=1e-4, std="biased")
    band = notation.recipe("entrocraft(h_low=linear(0.6, 0.4), h_high=cosine(start=1, end=.5))")
    assert band == entrocraft(h_low=Linear(0.6, 0.4), h_high=Cosine(1, 0.5))
    assert notation.recipe("grpo(beta=0.1)", beta=0.5, unknown=1) == grpo(beta=0.1)
    assert notation.recipe("grpo", beta=0.5) == grpo(beta=0.5)


def test_chains_of_parts():
    chain = reading.chain("subtract_group_mean | divide_by_group_std(eps=1e-4) | spread_evenly")
    assert [use.label for use in chain] == [
        "subtract_group_mean", "divide_by_group_std", "spread_evenly"
    ]  # fmt: skip
    assert chain[1].part.eps == 1e-4
    assert reading.chain("clip_both_sides(clip_low=1)") == (Use(ClipBothSides(clip_low=1.0)),)


def test_a_part_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    first, second = reading.chain(f'"{tmp_path}/mine.py:SubtractBest"(power=2) | spread_evenly')
    assert first.part.power == 2.0
    assert first.label == "subtract_best"
    assert second.label == "spread_evenly"
    with pytest.raises(UserError, match="has no SubtractBst, did you mean SubtractBest"):
        reading.chain(f'"{tmp_path}/mine.py:SubtractBst"')
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(UserError, match=r"cannot be loaded: .*broken.py:1: ZeroDivisionError"):
        reading.chain(f'"{tmp_path}/broken.py:Anything"')
    with pytest.raises(UserError, match="no file"):
        reading.chain('"nowhere.py:Anything"')
    with pytest.raises(UserError, match="cannot import no_such_package"):
        reading.chain('"no_such_package:Anything"')


def test_annotations_that_are_text_are_types_too(tmp_path):
    (tmp_path / "late.py").write_text(
        "from __future__ import annotations\n"
        "from strop.method.algorithm import Algorithm\n"
        "from strop.recipes.grpo import grpo\n"
        "def mine(beta: float = 0) -> Algorithm:\n    return grpo(beta=beta)\n"
    )
    found = notation.recipe(f'"{tmp_path}/late.py:mine"(beta=0.04)')
    assert found == grpo(beta=0.04)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1), ("-0.5", -0.5), ("1e-4", 1e-4), ("true", True), ("False", False), ("none", None),
        ("inf", math.inf), ("-inf", -math.inf), ("'3'", "3"), ("token-mean", "token-mean"),
        ("runs/a", "runs/a"), ("Qwen/Qwen3-4B-Base", "Qwen/Qwen3-4B-Base"), ("a b", "a b"),
        ("[1, 2.5]", (1, 2.5)), ("(0.0, inf)", (0.0, math.inf)), ("", ""), ("2+2", "2+2"),
        ("linear(0.6, 0.4)", Linear(0.6, 0.4)), ("warmup(1e-6, 10)", Warmup(1e-6, 10)),
        ("constant(-inf)", Constant(-math.inf)),
        ("null", None), ("[q_proj, a.jsonl, x-y, true]", ("q_proj", "a.jsonl", "x-y", True)),
        ("[a, [b]]", ("a", ("b",))), ("[a.py:f, x-y]", ("a.py:f", "x-y")),
        ("[/a]", "[/a]"), ("[f(x=1), 2]", "[f(x=1), 2]"),
        ("{style: compact}", {"style": "compact"}), ("{**a}", "{**a}"), ("{1: 2}", {"1": 2}),
        ("{1.5: 2}", "{1.5: 2}"),
        (" {a: data/q.jsonl, b: [x-y]}", {"a": "data/q.jsonl", "b": ["x-y"]}),
        ("{'a': [1, false, {b: none}], c: 2.5}", {"a": [1, False, {"b": None}], "c": 2.5}),
    ],
)  # fmt: skip
def test_values(text, expected):
    found = reading.value(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("word", ["false", "False", "FALSE"])
def test_words_inside_a_call_are_what_they_are_as_options(word):
    """As docs/NOTATION.md writes them: false, true, none and inf."""
    assert notation.recipe(f"grpo(normalize_std={word})") == grpo(normalize_std=False)
    text = f"average_by_constant_length(per_rollout={word}, length=1)"
    part = reading.chain(text)[0].part
    assert (part.per_rollout, part.length) == (False, 1)
    assert reading.chain("average_by_constant_length(per_rollout=true)")[0].part.per_rollout
    assert notation.recipe("grpo(normalize_std=true)") == grpo()
    assert reading.value(f"[{word}, true, none, inf]") == (False, True, None, math.inf)
    assert notation.recipe("entrocraft(h_high=inf)") == entrocraft(h_high=math.inf)


DANGEROUS = [
    "__import__('os').system('true')",
    "grpo(eps=__import__('os'))",
    "grpo(eps=open('x'))",
    "grpo(eps=[x for x in (1,)])",
    "grpo(eps=(lambda: 1)())",
    "grpo(eps=1 if 1 else 2)",
    "grpo(eps=f'{1}')",
    "grpo(eps=1 + 1)",
    "grpo(**{'eps': 1})",
    "grpo(1e-4)",
    "grpo.__class__",
    "grpo; grpo",
    "grpo(eps={[]: 1})",
    "grpo(eps=linear(open('x'), 1))",
    "grpo(eps=linear('a', 1))",
    "grpo(eps=linear(1, 2, 3, 4))",
    "grpo(eps=linear(**{'start': 1}))",
    "grpo(eps=line(1, 2))",
    "grpo(eps=\0)",
    "grpo(",
    "",
]


@pytest.mark.parametrize("text", DANGEROUS)
def test_nothing_is_evaluated(text):
    with pytest.raises(UserError):
        notation.recipe(text)
    with pytest.raises(UserError):
        reading.chain(text)


@pytest.mark.parametrize(
    ("read", "text", "twice"),
    [
        (notation.recipe, "grpo(beta=0.04, beta=0)", "beta"),
        (reading.chain, "divide_by_group_std(eps=1e-4, eps=1e-2)", "eps"),
        (reading.chain, "spread_evenly[advantage_B: a_B, advantage_B: b_B]", "advantage_B"),
        (reading.value, "linear(start=1, start=2)", "start"),
        (reading.value, "{a: 1, a: 2}", "a"),
    ],
)
def test_what_is_given_twice_is_refused(read, text, twice):
    with pytest.raises(UserError, match=f"{twice} is given twice"):
        read(text)


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ('play_episodes(reminder="Note: be brief")', []),
        ('"my parts.py:Rollout"(reminder="Note: be brief")', ["my parts.py:Rollout"]),
        ('until(3, "a.py:one") | "b.py:the other"', ["b.py:the other", "a.py:one"]),
        ('policy(objective="my parts.py:Bound it", average=x)', ["my parts.py:Bound it"]),
        ('"mine"(by="my parts.py:weigh")', ["my parts.py:weigh"]),
        ('"mine"(by=["{", "my parts.py:weigh"])', ["my parts.py:weigh"]),
    ],
)
def test_only_names_are_ones_own_code(text, own):
    assert values.own(text) == own


def test_renamed_columns_are_no_file():
    (use,) = reading.chain("spread_evenly[advantage_B:return_B, advantage_T:return_T]")
    assert use.columns == (("advantage_B", "return_B"), ("advantage_T", "return_T"))


def test_a_label_has_no_dot():
    with pytest.raises(UserError, match="a label has no dot"):
        reading.chain('spread_evenly @ "a.b"')


def test_a_schedule_is_corrected_by_name():
    with pytest.raises(UserError, match="no schedule liner, did you mean linear"):
        reading.value("liner(1, 2)")
    with pytest.raises(UserError, match="no schedule zzz; there are constant, linear, cosine"):
        reading.value("zzz(1, 2)")


@given(st.text(max_size=30))
def test_any_text_is_a_value_or_a_clear_refusal(text):
    try:
        found = reading.value(text)
    except UserError:
        return
    assert found is None or isinstance(
        found, bool | int | float | complex | str | bytes | tuple | dict | set | type(...) | Linear
    )


# -- overrides ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "full"),
    [
        ("advantage.eps", "advantage.divide_by_group_std.eps"),
        ("loss.clip_high", "terms.policy.objective.clip_high"),
        ("terms.clip_high", "terms.policy.objective.clip_high"),
        ("loss.policy.coef", "terms.policy.coef"),
        ("loss.kl.coef", "terms.kl.coef"),
        ("advantage.divide_by_group_std.eps", "advantage.divide_by_group_std.eps"),
        ("plan.num_epochs", "plan.split_into_minibatches.num_epochs"),
        ("selection.h_low", "selection.keep_inside_entropy_band.h_low"),
    ],
)
def test_short_paths(path, full):
    assert reading.resolve(notation.recipe("entrocraft"), path) == full


def test_override_replaces_one_option():
    algorithm = reading.override(grpo(), "loss.clip_high", 0.28)
    assert algorithm == grpo(clip_high=0.28)
    assert reading.override(grpo(), "advantage.eps", Constant(0.1)).at_step(
        10, 10
    ) == grpo(eps=0.1)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("loss.coef", r"loss.coef could be terms\.policy\.coef or terms\.kl\.coef: write one"),
        ("advantage.epz", r"no option advantage\.epz, did you mean advantage\.eps"),
        ("avantage.eps", "no option avantage.eps: stages with options are advantage"),
        ("eps", "no option eps"),
        ("advantage.subtract_group_mean.eps", "no option advantage.subtract_group_mean.eps"),
    ],
)
def test_ambiguous_and_unknown_paths(path, message):
    with pytest.raises(UserError, match=message):
        reading.resolve(grpo(beta=0.1), path)


# -- writing ------------------------------------------------------------------------------------


@given(
    st.floats(0, 10, allow_nan=False),
    st.one_of(
        st.floats(0, allow_nan=False),
        st.builds(Linear, st.floats(0, 1), st.floats(0, 1)),
        st.builds(Warmup, st.floats(0, 1), st.integers(1, 9)),
    ),
)
def test_parts_survive_writing_and_reading(low, high):
    part = ClipBothSides(clip_low=low, clip_high=high)
    assert reading.chain(writing.part_text(part)) == (Use(part),)


def test_only_changed_fields_are_written():
    assert writing.part_text(ClipBothSides()) == "clip_both_sides"
    assert writing.part_text(ClipBothSides(clip_high=0.28)) == "clip_both_sides(clip_high=0.28)"


def test_description_of_every_stage():
    shown = writing.describe(grpo(beta=0.04, eps=1e-4))
    assert shown["advantage"] == [
        "subtract_group_mean", "divide_by_group_std(eps=0.0001)", "spread_evenly"
    ]  # fmt: skip
    assert shown["rollout"] == ["sample_independently"]
    assert shown["curation"] == []
    assert shown["terms"][1] == (
        "kl(objective=penalise_kl_to_reference, average=average_per_sequence, coef=0.04)"
    )
