"""The collector's treatment of draws: refusals, reasons, and who sees the sampled rollouts."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from models import Lab
from runs import Runner

from strop.support.errors import UserError

PARTS = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from strop.method.part import Curated, Draw, Result


@dataclass(frozen=True)
class DrawBadly:
    kind: ClassVar[str] = "sampling"
    uid: int = -1
    size: int = 4
    number: int = 1

    def __call__(self, pool: tuple[int, ...]):
        uid = pool[0] if self.uid < 0 else self.uid
        return (Draw(uid, self.size),) * self.number if self.number >= 0 else [(uid, self.size)]


@dataclass(frozen=True)
class SayWhy:
    kind: ClassVar[str] = "sampling"

    def __call__(self, draws: tuple[Draw, ...]):
        said = [draw.because("drawn first").because("or not") for draw in draws]
        return tuple(draw._replace(uid=np.int64(draw.uid), probability=np.float32(0.25))
                     for draw in said)


@dataclass(frozen=True)
class AskOnce:
    kind: ClassVar[str] = "curation"
    uid: int = -1
    draw: int = 0

    def init(self):
        return 0

    def __call__(self, batch, state):
        uid = int(batch["uid_P"][0]) if self.uid < 0 else self.uid
        ask = () if state else (Draw(uid, 2, draw=self.draw, why="two more"),)
        everything_B = torch.ones(batch.size("B"), dtype=torch.bool)
        return Result(Curated(everything_B, "x", ask=ask), 1 - state)
"""


def start(tmp_path, sampling, curation="", num_rollouts=4, **stages):
    lab = Lab.make(tmp_path)
    (tmp_path / "own.py").write_text(PARTS)
    raw = lab.raw("grpo", reward="even", data={"validation_size": 0})
    raw["stages"] = {"sampling": sampling.format(file=tmp_path / "own.py")}
    raw["stages"] |= stages
    if curation:
        raw["stages"]["curation"] = curation.format(file=tmp_path / "own.py")
    raw["algorithm"]["sampling.num_rollouts"] = num_rollouts
    if "draw_in" not in sampling:
        del raw["algorithm"]["sampling.num_prompts"], raw["algorithm"]["sampling.num_rollouts"]
    Runner().whole(raw, tmp_path / "run")
    return tmp_path / "run"


def test_what_is_asked_of_unknown_prompts_stops_the_run_before_step_1(tmp_path):
    with pytest.raises(UserError, match="curation: ask_once draws the prompt 77, which is none"):
        start(tmp_path, "draw_in_shuffled_order", '"{file}:AskOnce"(uid=77)')


@pytest.mark.parametrize(
    ("sampling", "message"),
    [('"{file}:DrawBadly"(uid=77)', "draw_badly draws the prompt 77, which is none of the 12"),
     ('"{file}:DrawBadly"(size=0)', "draw_badly gives the prompt .* 0 rollouts"),
     ('"{file}:DrawBadly"(number=-1)', r"draw_badly returned \[\(\d+, 4\)\]: return a tuple of Dr"),
     ('"{file}:DrawBadly"(number=0)', "sampling: draw_badly leaves no draw: a step needs")],
)  # fmt: skip
def test_draws_of_unknown_prompts_or_of_nothing_stop_the_run_before_step_1(
    tmp_path, sampling, message
):
    with pytest.raises(UserError, match=message):
        start(tmp_path, sampling)
    lines = tmp_path / "run" / "metrics.jsonl"
    assert not lines.exists() or not lines.read_text()


def test_what_is_asked_for_a_group_keeps_what_was_said_of_it(tmp_path):
    sampling = 'draw_in_shuffled_order | "{file}:SayWhy" | track_success'
    run = start(tmp_path, sampling, '"{file}:AskOnce"')
    rows = pq.read_table(run / "rollouts" / "step-000003.parquet").to_pylist()
    said = [row["draw/why"] for row in rows]
    assert said.count("drawn first; or not") == 8
    assert said.count("drawn first; or not; two more") == 2
    chances = {row["draw/sample_probability"] for row in rows if row["draw/why"] == said[0]}
    assert chances == {0.25}, "NumPy's number is written as any other"
    by_uid = {}
    for row in rows:
        by_uid.setdefault(row["uid"], set()).add(row["draw/past_answers"])
    assert all(len(each) == 1 for each in by_uid.values())


def test_groups_that_a_strategy_numbers_have_their_prompts_columns(tmp_path):
    """Every draw is sampled again, in a group that is no draw's; one of curation has no class."""
    run = start(
        tmp_path, "draw_in_shuffled_order | track_success | sort_by_success",
        '"{file}:AskOnce"(draw=9)', rollout="sample_at_second_temperature(share=1.0)",
        advantage="subtract_group_mean | weigh_bins | spread_evenly",
    )  # fmt: skip
    table = pq.read_table(run / "rollouts" / "step-000003.parquet")
    assert pa.types.is_integer(table.schema.field("draw/bin").type)
    by_uid = {}
    for row in table.to_pylist():
        by_uid.setdefault(row["uid"], set()).add(row["draw/bin"])
    ((asked, classes),) = [(uid, found) for uid, found in by_uid.items() if -1 in found]
    assert len(classes) == 2
    assert all(len(found) == 1 for uid, found in by_uid.items() if uid != asked)


def test_the_tracker_counts_what_curation_drops(tmp_path):
    sampling = "draw_in_shuffled_order | track_success"
    run = start(tmp_path, sampling, "drop_uniform_groups(max_rounds=3)", num_rollouts=2)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    sampled = sum(line["data/rollouts_sampled"] for line in lines)
    kept = sum(line["data/rollouts_kept"] for line in lines)
    saved = torch.load(run / "checkpoints" / "step-000003" / "trainer.pt", weights_only=True)
    state = saved["state"]["sampling.track_success"]
    assert sampled > kept
    assert float(state["answers"].sum()) == sampled
