"""The page's data of a step: exact where it matters, and errors that say what to do."""

import base64
import zlib

import numpy as np
import pyarrow.parquet as pq
import pytest
from short_runs import make_lab, run_of, settings_for

from strop.inspection import data
from strop.inspection.data import read_step, recorded_steps
from strop.support.errors import UserError
from strop.tracking.rollouts_file import read_table


def unpacked(text):
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<f4")


def test_a_step_is_read_with_its_rollouts(make_step):
    step = read_step(make_step(num=8, size=12, group=4))
    assert step.number == 3
    assert step.prompts == ["puzzle 0", "puzzle 1"]
    assert [r["group"] for r in step.rollouts] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {r["size"] for r in step.rollouts} == {12}
    assert step.rollouts[2]["more"] == {"reward/right": 1.0}
    ids = step.columns["id_T"].astype(int)
    texts = "0123456789+-*/="
    assert [step.texts[int(i)] for i in step.columns["text_T"]] == [texts[i] for i in ids]


def test_of_all_rollouts_only_those_that_are_shown_become_rows(make_step, monkeypatch):
    """A step has thousands, each with a long answer, and keeps the tokens of a few."""
    folder, taken = make_step(num=8), []
    path = folder / "tokens" / "step-000003.parquet"
    pq.write_table(pq.read_table(path).slice(4, 2), path)

    class Rollouts:
        def __init__(self, table):
            self.table = table

        def slice(self, row, number):
            taken.append((row, number))
            return self.table.slice(row, number)

    def read(path):
        return Rollouts(read_table(path)) if "rollouts" in path.parts else read_table(path)

    monkeypatch.setattr(data, "read_table", read)
    assert [each["row"] for each in read_step(folder).rollouts] == [4, 5]
    assert taken == [(4, 1), (5, 1)]


def test_packed_numbers_have_four_digits_and_whole_ones_all(make_step):
    step = read_step(make_step())
    packed = step.packed()["columns"]
    for name, column in step.columns.items():
        found = unpacked(packed[name])
        assert np.array_equal(np.isnan(found), np.isnan(column)), name
        np.testing.assert_allclose(found, column, rtol=1e-4, err_msg=name)
    step.columns["id_T"][:2] = [151_643, 2**23 + 1]
    assert unpacked(step.packed()["columns"]["id_T"])[:2].tolist() == [151_643, 2**23 + 1]


def test_a_prompt_of_messages_is_said_in_words(make_step):
    chat = '[{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Two."}]'
    odd = ["[not json", chat, chat, chat, "[1, 2]", "", "", ""]
    step = read_step(make_step(group=1, rollouts={"prompt": odd}))
    assert step.prompts[:2] == ["[not json", "user: How many?\nassistant: Two."]
    assert step.prompts[4] == "[1, 2]"


def test_errors_say_what_there_is(make_step, tmp_path):
    with pytest.raises(UserError, match=r"is not a run: it has no config.toml"):
        recorded_steps(tmp_path)
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(UserError, match=r"kept no tokens: .* training.inspect"):
        read_step(tmp_path)
    folder = make_step(steps=(3, 10))
    assert recorded_steps(folder) == [3, 10]
    with pytest.raises(UserError, match="no tokens of step 4; there are 3, 10"):
        read_step(folder, 4)
    (folder / "tokens" / "step-000003.parquet").write_text("half")
    with pytest.raises(UserError, match=r"tokens/step-000003\.parquet is damaged"):
        read_step(folder, 3)
    (folder / "rollouts" / "step-000010.parquet").unlink()
    with pytest.raises(UserError, match="kept no tokens of step 10; there are 3"):
        read_step(folder, 10)


def test_a_tree_and_an_environment_of_real_runs(tmp_path):
    lab = make_lab(tmp_path / "lab")
    training = {"steps": 1, "save_every": 0, "rollouts_every": 1}
    for recipe in ("rose_tree", "gigpo"):
        run_of(settings_for(lab, recipe, training=training), tmp_path / recipe)
    tree = read_step(tmp_path / "rose_tree")
    forked = [r for r in tree.rollouts if r["parent"] >= 0]
    assert forked
    starts = np.cumsum([0, *(r["size"] for r in tree.rollouts)])
    for rollout in forked:
        parent = tree.rollouts[rollout["parent"]]
        assert parent["group"] == rollout["group"]
        ids, mask = tree.columns["id_T"], tree.columns["mask_T"]
        own, other = (
            ids[starts[n] : starts[n + 1]][mask[starts[n] : starts[n + 1]] == 1]
            for n in (tree.rollouts.index(rollout), rollout["parent"])
        )
        assert own[: rollout["fork"]].tolist() == other[: rollout["fork"]].tolist()
    episodes = read_step(tmp_path / "gigpo")
    assert all(len(r["turns"]) == 2 for r in episodes.rollouts)
    assert {"reward", "valid", "done"} <= episodes.rollouts[0]["turns"][0].keys()
    for n, rollout in enumerate(episodes.rollouts):
        assert "turns" not in rollout["more"]
        assert sum(turn["reward"] for turn in rollout["turns"]) == pytest.approx(rollout["outcome"])
        assert n < len(episodes.rollouts)
