"""labs/evocua.py: learning from a pool of episodes, and the page in a real browser."""

import random
import re

import pyarrow as pa
import pytest
from browser import needs_chromium
from opened import opened

from strop.environments.episodes import is_transient
from strop.support.errors import UserError

lab = opened("evocua")
GOAL = "1,1,0"
START, ONE, BOTH, OVER = (f"{GOAL}:{page}=" for page in ("0,0,0", "1,0,0", "1,1,0", "2,0,0"))


def episode(success, *steps):
    return lab.Episode(GOAL, steps, success, 0)


WON = episode(True, (START, "9"), (START, "1"), (ONE, "2"), (BOTH, "5"))
SAVED_EARLY = episode(False, (START, "1"), (ONE, "5"))
TOO_MANY = episode(False, (START, "1"), (ONE, "1"), (OVER, "5"))
LOST_AT_ONCE = episode(False, (START, "5"))


def test_steps_that_led_nowhere_are_not_imitated():
    rows = lab.Pool([WON, SAVED_EARLY]).demonstrations()
    assert [(row["prompt"], row["completion"]) for row in rows] == [
        (START, "1"), (ONE, "2"), (BOTH, "5"),
    ]  # fmt: skip
    wandered = episode(True, (START, "1"), (ONE, "4"), (START, "2"), (ONE, "2"), (BOTH, "5"))
    assert lab.moving(wandered.steps) == [(START, "2"), (ONE, "2"), (BOTH, "5")]


def test_the_failing_step_is_the_first_that_leaves_the_ways_to_success():
    pool = lab.Pool([WON, SAVED_EARLY, TOO_MANY, LOST_AT_ONCE])
    found = [(each["prompt"], each["chosen"], each["rejected"]) for each in pool.pairs()]
    assert found == [(ONE, "2", "5"), (ONE, "2", "1"), (START, "1", "5")]
    assert lab.Pool([SAVED_EARLY]).pairs() == []
    walked = lab.Pool([SAVED_EARLY]).pairs([WON])
    assert walked == [{"prompt": ONE, "chosen": "2", "rejected": "5"}]


def test_a_table_of_rollouts_becomes_episodes():
    turn = '[{"observation": "1,1,0:0,0,0=", "action": "5", "reward": 0.0, "valid": true}]'
    rows = [
        {"prompt": START, "turns": turn, "reward": reward, "scored": scored}
        for reward, scored in ((0.0, True), (1.0, True), (0.0, False))
    ]
    pool = lab.Pool()
    assert pool.add(pa.Table.from_pylist(rows), 3) == 0.5
    assert [each.success for each in pool.episodes] == [False, True]
    assert pool.episodes[0] == lab.Episode(GOAL, ((START, "5"),), False, 3)


def test_no_browser_is_an_error(monkeypatch, tmp_path, refused):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    assert re.search(
        "error: there is no chromium: install Chromium, or set",
        refused(lab.main, ["--seeds", "1", "--out", str(tmp_path / "out")]),
    )
    monkeypatch.setenv("CHROMIUM", "/no/such/browser")
    with pytest.raises(UserError, match="there is no /no/such/browser"):
        lab.Browser()
    with pytest.raises(UserError, match="cannot be read"):
        lab.WebTask(str(tmp_path / "none.jsonl"))


class Shelf:
    """The page without a browser: the same elements, and the same validators."""

    def __init__(self, owner):
        self.counts, self.saved = [0, 0, 0], None

    def elements(self):
        found = []
        for number, (name, count) in enumerate(zip(lab.THINGS, self.counts, strict=True), 1):
            found.append(lab.Element(0, "spinbutton", name, str(count)))
            found.append(lab.Element(number, "button", f"More {name}", ""))
        return [*found, lab.Element(4, "button", "Clear all", ""),
                lab.Element(5, "button", "Save", "")]  # fmt: skip

    def press(self, element):
        if element.node <= 3:
            self.counts[element.node - 1] += 1
        elif element.node == 4:
            self.counts = [0, 0, 0]
        else:
            self.saved = [*self.counts]

    def validate(self, validator):
        return [int(each) for each in re.findall(r": (\d)", validator)] == self.saved

    def close(self):
        return


def test_a_short_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(lab, "Frame", Shelf)
    monkeypatch.setattr(lab, "browser", lambda: None)
    sizes = lab.Sizes(train=4, held_out=2, walks=2, cold=30, plays=4, steps=1)
    real, found = lab.score, []

    def score(*given):  # a model is opened each time: once is enough
        found.append(found[0] if found else real(*given))
        return found[-1]

    monkeypatch.setattr(lab, "score", score)
    scores = lab.one_seed(sizes, 1, 0, tmp_path)
    assert list(scores) == ["cold", "round 0, sft and dpo", "round 0, sft alone"]
    lab.report([scores, scores])
    said = capsys.readouterr().out
    assert re.search(r"round 0: 0\.\d+ succeed; \d+ steps, \d+ pairs", said)
    assert "sft alone" in said
    pairs = tmp_path / "round-0/dpo/given"
    assert '"chosen"' in next(pairs.glob("*.jsonl")).read_text()


@needs_chromium
def test_the_page_in_a_browser(tmp_path):
    try:
        task = lab.make_task((2, 0, 1), random.Random(1))
        assert lab.works(task, task.walk)
        assert not lab.works(task, (4, *task.walk[:-2], 5))
        lab.make_tasks(tmp_path / "tasks.jsonl", 1, 1, 0)
        plain, compact = (
            lab.WebTask(str(tmp_path / "tasks.jsonl"), s) for s in ("plain", "compact")
        )
        shown = plain.reset(0).text
        assert '[1] button "More apples"\nspinbutton "pears" = 0\n[2] button' in shown
        goal = ",".join(map(str, plain.task["goal"]))
        assert compact.reset(0).text == f"{goal}:0,0,0="
        assert plain.step("2").text.count(" = 1") == 1
        assert compact.step("6").valid is False
        assert compact.step("4").text == f"{goal}:0,0,0="  # a page of its own
        for number in compact.task["walk"]:
            last = compact.step(str(number))
        assert last.done
        assert last.reward == 1
        assert plain.step("5").reward == 0
        assert plain.others != plain.training
        for each in (plain, compact):
            each.close()
        plain.reset(0)
        lab.processes.end(lab.browser()._process)
        with pytest.raises(lab.Lost) as lost:
            plain.step("1")
        assert is_transient(lost.value)
        assert compact.reset(0).text == f"{goal}:0,0,0="  # in a new browser
    finally:
        while lab.opened():
            lab.opened().pop().close()
