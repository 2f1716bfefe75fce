"""Mistakes in parts of one's own that show only in a step: the error names part and remedy."""

import json

import pytest
from commands import Strop

PARTS = '''
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import Result, Update


@dataclass(frozen=True)
class Stopped:
    kind: ClassVar[str] = "loss/bound"

    def __call__(self, log_ratio_T: Tensor, advantage_T: Tensor) -> Tensor:
        return log_ratio_T.detach().exp() * advantage_T


@dataclass(frozen=True)
class Sets:
    kind: ClassVar[str] = "control"
    moves: ClassVar[tuple[str, ...]] = ("terms.policy.objective.clip_high", "training.lr")
    path: str = "terms.policy.objective.clip_high"
    to: float = -1.0
    how: str = "number"

    def __call__(self, metrics) -> Result:
        if self.how == "changes":
            metrics["reward"] = 1.0
        to = {"number": self.to, "tensor": torch.tensor(self.to), "nan": float("nan")}
        return Result(None if self.how == "nothing" else {self.path: to[self.how]})


@dataclass(frozen=True)
class Plans:
    kind: ClassVar[str] = "plan"
    how: str = "never"

    def __call__(self, mask_T: Tensor):
        if self.how == "mask":
            yield mask_T
        elif self.how == "float":
            yield Update(mask_T.float())
        elif self.how == "raises":
            yield Update(mask_T[:-1] & {}["missing"])
        elif self.how == "term":
            yield Update(mask_T, terms=("values",))
        elif self.how != "never":
            yield Update(mask_T)
        return {"number": 3, "text": {"mine/x": "much"}}.get(self.how, {"mine/x": 2.0})


@dataclass(frozen=True)
class Learns:
    """A result that has a gradient of its own."""

    kind: ClassVar[str] = "advantage/baseline"
    in_place: bool = False

    def __call__(self, advantage_B: Tensor) -> Tensor:
        if self.in_place:
            return advantage_B.requires_grad_() * 1
        return advantage_B * torch.ones((), requires_grad=True)
'''


@pytest.fixture
def train(monkeypatch, capsys, lab, tmp_path):
    """Trains a step with parts of the file, and returns what was printed and the run's folder."""
    (tmp_path / "parts.py").write_text(PARTS)
    strop = Strop(monkeypatch, capsys)

    def run(option):
        option = option.replace("OWN:", f"{tmp_path}/parts.py:")
        words = lab.arguments(option, "training.steps=1", "training.rollouts_every=1")
        return strop("train", *words, "--out", tmp_path / "run"), tmp_path / "run"

    return run


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ('bound="OWN:Stopped"', "term policy: the objective of stopped has no gradient, so it"),
        ('control="OWN:Sets"', "control: sets sets terms.policy.objective.clip_high: clip_both_s"),
        ('control="OWN:Sets"(path="training.lr")',
         "control: sets sets training.lr to -1.0: give a number of at least 0"),
        ('control="OWN:Sets"(how="tensor")', "to tensor(-1.): give a number, such as float(value)"),
        ('control="OWN:Sets"(how="nan")', "clip_high to nan: give a number"),
        ('control="OWN:Sets"(how="nothing")', "control: sets returned NoneType: return a dict of"),
        ('plan="OWN:Plans"(how="mask")', "part plans yielded Tensor; a part of plan yields an Upd"),
        ('plan="OWN:Plans"(how="float")', "does not fit: mask_T as float32, it must be bool"),
        ('plan="OWN:Plans"(how="term")',
         "an Update is for the term 'values', which the method does not have; there are policy"),
        ('plan="OWN:Plans"(how="number")', "part plans returned int at its end: return a dict of"),
        ('plan="OWN:Plans"(how="text")', "part plans gives the metric mine/x as str"),
        ('advantage="OWN:Learns"(in_place=true) | spread_evenly',
         "part learns changed its input advantage_B in place"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_the_part(option, message, train):
    result, _ = train(option)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1


def test_an_error_in_a_plan_names_its_part_and_line(train):
    line = PARTS[: PARTS.index('{}["missing"]')].count("\n") + 1
    result, _ = train('plan="OWN:Plans"(how="raises")')
    assert result.code == 1
    assert result.err.count("  File ") == 1  # the part's code alone
    note = result.err.splitlines()[-1]
    assert note.startswith("The part plans raised this: ")
    assert note.endswith(f"parts.py:{line}, step 1")


def test_a_control_cannot_change_what_a_step_logs(train):
    result, _ = train('control="OWN:Sets"(how="changes")')
    assert "TypeError: 'mappingproxy' object does not support item assignment" in result.err


def test_what_a_plan_without_an_update_returns_is_logged(train):
    result, folder = train('plan="OWN:Plans"')
    assert result.code == 0, result.err
    assert json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["mine/x"] == 2.0


def test_the_gradient_of_a_result_ends_with_its_part(train):
    result, folder = train('advantage="OWN:Learns" | spread_evenly')
    assert result.code == 0, result.err
    assert (folder / "tokens" / "step-000001.parquet").exists()
