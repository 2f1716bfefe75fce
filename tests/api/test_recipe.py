"""`strop.recipe`: a method to inspect, to change and to train with."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from short import lines, trained
from torch import Tensor

import strop
from strop import UserError
from strop.api.options import combined, from_keywords
from strop.method.schedule import Linear
from strop.parts.advantage.baseline.subtract_group_median import SubtractGroupMedian
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly


def test_a_method_shows_its_parts() -> None:
    shown = repr(strop.recipe("gspo(clip_low=0.1)", clip_high=0.3)).splitlines()
    assert shown[0].split() == ["sampling", "draw_in_shuffled_order"]
    assert "objective=clip_both_sides(clip_low=0.1, clip_high=0.3)" in shown[-2]
    page = strop.recipe("gspo")._repr_html_()
    assert page.count("<tr>") == len(shown)
    assert "subtract_group_mean" in page
    phased = strop.recipe("until(2, grpo) @ first | rloo @ second")
    assert "phase first, until 2:" in repr(phased)
    assert phased._repr_html_().count("<table") == 2


def test_parts_and_numbers_are_replaced() -> None:
    grpo = strop.recipe()
    other = grpo.replace(
        advantage=[SubtractGroupMedian(), SpreadEvenly()], bound="follow_advantage",
        loss_coef=0.5, **{"sampling.num_rollouts": 4},
    )  # fmt: skip
    found = grpo.differences(other)
    assert found["advantage"] == (
        "subtract_group_mean | divide_by_group_std | spread_evenly",
        "subtract_group_median | spread_evenly",
    )
    assert found["terms.policy.objective"][1] == "follow_advantage"
    assert found["terms.policy.coef"] == (1.0, 0.5)
    assert grpo.differences(strop.recipe()) == {}
    mixed = grpo.replace(advantage=[SubtractGroupMedian(), "whiten_over_batch | spread_evenly"])
    chain = "subtract_group_median | whiten_over_batch | spread_evenly"
    assert grpo.differences(mixed)["advantage"][1] == chain
    texts = grpo.replace(advantage=["subtract_group_median", "spread_evenly"])
    assert grpo.differences(texts)["advantage"] == found["advantage"]
    halved = grpo.replace(loss_clip_high=Linear(0.3, 0.1)).paths()
    assert halved["terms.policy.objective.clip_high"] == Linear(0.3, 0.1)
    both = strop.recipe("grpo", num_rollouts=4, **{"loss.clip_high": 0.3}).paths()
    assert both["terms.policy.objective.clip_high"] == 0.3
    with pytest.raises(UserError, match=r"no option loss\.clip_hihg, did you mean"):
        grpo.replace(loss_clip_hihg=0.3)
    with pytest.raises(UserError, match="recipe gspo has no parameter clip_hihg"):
        strop.recipe("gspo", clip_hihg=0.3)
    with pytest.raises(UserError, match="recipe is int"):
        strop.recipe(3)  # type: ignore[arg-type]


def test_none_is_no_value_of_a_setting() -> None:
    for name in ("data_system_prompt", "model_reference", "training_lr"):
        with pytest.raises(UserError, match=f"{name.replace('_', '.', 1)} is None: give a value"):
            from_keywords({name: None})
    assert from_keywords({"correction": None}) == [("correction", "none")]


def test_a_method_and_a_files_method_do_not_go_together(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("seed = 3\n")
    assert combined(strop.recipe("grpo"), [], {}, file).seed == 3
    file.write_text('recipe = "dapo"\n[algorithm]\n"loss.clip_high" = 0.5\n')
    with pytest.raises(UserError, match=r"run.toml has \[algorithm\].*: leave them out"):
        combined(strop.recipe("grpo"), [], {}, file)


def test_a_part_that_was_defined_anew_is_not_trained_in_place_of_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def define(power: int) -> str:
        @dataclass(frozen=True)
        class Mine:
            kind: ClassVar[str] = "advantage/baseline"

            def __call__(self, advantage_B: Tensor) -> Tensor:
                return advantage_B**power

        Mine.__module__, Mine.__qualname__ = __name__, "Mine"
        monkeypatch.setattr(sys.modules[__name__], "Mine", Mine, raising=False)
        return f'subtract_group_mean | "{__name__}:Mine" | spread_evenly'

    method = strop.recipe("grpo").replace(advantage=define(1))
    combined(method, [], {})
    define(2)
    with pytest.raises(UserError, match=r"Mine was defined anew .*: make the method again"):
        combined(method, [], {})


def test_a_method_trains_as_its_line_does(lab: Any, here: Any) -> None:
    by_line = trained(lab, training_steps=1, bound="clip_both_sides(clip_high=0.5)")
    method = strop.recipe("grpo").replace(bound="clip_both_sides(clip_high=0.5)")
    made = strop.train(method, **given(lab), training_steps=1)
    assert lines(made.folder) == lines(by_line.folder)
    assert made.folder.name == "run-1"
    assert "a method of its own" in repr(made)


def given(lab: Any) -> dict[str, Any]:
    from short import SHORT, even, rows_of

    short = {name: value for name, value in SHORT.items() if name != "training_steps"}
    return {"model": str(lab.model), "data": rows_of(lab.data), "reward": even, **short}
