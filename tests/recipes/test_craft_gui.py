import json

import pytest
import torch
from fakes.engine import TableEngine, by_last_token
from fakes.services import over_table
from models import Lab, without_times
from runs import Runner

from strop.method.schedule import Constant
from strop.parts.sampling.draw_in_stages import DrawInStages
from strop.recipes.craft_gui import craft_gui
from strop.support.errors import UserError


class Texts:
    def __init__(self, rows):
        self.rows = rows

    def row(self, uid):
        return self.rows[uid]


LEVELS = Texts({uid: {"level": level} for uid, level in enumerate((3, 1, 2.5, 1, 9, 2))})


def drawn(part, state, texts=LEVELS):
    rng = torch.Generator().manual_seed(0)
    return part(tuple(range(6)), state, rng, texts, None, None)


def test_stages_go_from_easy_to_hard():
    found, state = [], None
    part = DrawInStages(2, 4, column="level")
    for step in range(1, 7):
        now = DrawInStages(2, 4, column="level", progress=part.progress(step, 6))
        result = drawn(now, state or now.init())
        state = result.state
        found.append(({draw.uid for draw in result.value}, result.metrics["draw/stage"]))
    # by level: 1 and 3 (1), 5 (2) and 2 (2.5), 0 (3) and 4 (9)
    assert found == [({1, 3}, 0), ({5, 2}, 1), ({5, 2}, 1), ({0, 4}, 2), ({0, 4}, 2), ({0, 4}, 2)]
    last = drawn(DrawInStages(2, 4, column="level", progress=1.0), state)
    assert {d.why for d in last.value} == {
        "stage 3 of 3, difficulty 3",
        "stage 3 of 3, difficulty 9",
    }
    assert last.metrics["draw/difficulty"] == 6.0


def test_every_prompt_is_in_one_stage():
    for num_stages in range(1, 7):
        found = []
        for stage in range(num_stages):
            part = DrawInStages(6, 1, "level", num_stages, (stage + 0.5) / num_stages)
            found += {draw.uid for draw in drawn(part, part.init()).value}
        assert sorted(found) == list(range(6))


def test_measured_difficulty_is_the_share_of_wrong_answers():
    # 5 is never solved, 6 always; 7 has no score, as if never solved
    engine = TableEngine(by_last_token({n: [float(id == n) for id in range(5)] for n in (2, 3, 4)}))
    outcome = {2: 0.0, 3: 1.0, 4: None}
    prompts = {5: (2,), 6: (3,), 7: (4,)}
    services = over_table(engine, prompts, lambda ids: outcome[ids[0]], answer_tokens=1)
    found = []
    for stage in range(3):
        part = DrawInStages(1, 1, num_stages=3, progress=stage / 3, num_answers=2)
        rng = torch.Generator().manual_seed(0)
        error = part(
            (5, 6, 7), part.init(), rng, services.texts, services.grading, services.sampling
        )
        found.append((error.value[0].uid, error.metrics["draw/difficulty"]))
    assert found == [(6, 0.0), (5, 1.0), (7, 1.0)]
    assert [len(request.ids) for request in services.sampling.asked] == [1] * 3 * 3 * 2


def test_refusals():
    part = DrawInStages(2, 4, column="level", progress=0.0)
    with pytest.raises(UserError, match="the row of prompt 2 has no level: give every row"):
        drawn(part, part.init(), Texts({**LEVELS.rows, 2: {}}))
    with pytest.raises(UserError, match="level of prompt 0 is 'hard': make it a number"):
        drawn(part, part.init(), Texts({**LEVELS.rows, 0: {"level": "hard"}}))
    with pytest.raises(UserError, match="7 stages of 6 prompts"):
        drawn(DrawInStages(column="level", num_stages=7, progress=0.0), part.init())
    assert craft_gui().facts() >= {"samples_again"}
    assert "samples_again" not in craft_gui(column="level").facts()


def test_a_missing_column_leaves_no_run_behind(tmp_path):
    raw = Lab.make(tmp_path).raw("craft_gui(column='level')", reward="even")
    with pytest.raises(UserError, match="has no level"):
        Runner().whole(raw, tmp_path / "run")
    lines = tmp_path / "run" / "metrics.jsonl"
    assert not lines.exists() or not lines.read_text()


def test_a_run_goes_on_as_it_would_have(tmp_path):
    lab = Lab.make(tmp_path)
    rows = [json.loads(line) for line in lab.data.read_text().splitlines()]
    lab.data.write_text("".join(json.dumps({**row, "level": -n}) + "\n"
                                for n, row in enumerate(rows)))  # fmt: skip
    raw = lab.raw("craft_gui(column='level', num_answers=2)", reward="even")
    Runner().whole(raw, tmp_path / "whole")
    raw["algorithm"]["sampling.progress"] = Constant(0.4)
    Runner().whole({**raw, "training": {**raw["training"], "steps": 2}}, tmp_path / "cut")
    runner = Runner()
    runner.go(runner.resume(tmp_path / "cut", training={"steps": 3}))
    Runner().whole(raw, tmp_path / "same")
    assert without_times(tmp_path / "cut") == without_times(tmp_path / "same")
    stages = [line["draw/stage"] for line in without_times(tmp_path / "whole")[-3:]]
    assert stages == [1, 2, 2]
