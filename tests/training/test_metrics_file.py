"""A damaged metrics file, names that rewards may not log, and texts that UTF-8 cannot encode."""

import shutil

import models
import pyarrow.parquet as pq
import pytest
from models import without_times

from strop.report.page import write_report
from strop.support.errors import UserError
from strop.tracking.metrics_file import is_number, read_metrics

DAMAGE = [b'{"step": 2, "loss', b"", b"[1]", b"7", b'{"loss": 1.0}', b"\xff\xfe", b'{"step": "2"}']


@pytest.fixture(scope="module")
def done(lab, tmp_path_factory):
    """A run of three steps with a checkpoint of step 2 alone."""
    from runs import Runner

    folder = tmp_path_factory.mktemp("done") / "run"
    Runner().whole(lab.raw(training={"save_every": 2}), folder)
    return folder


@pytest.fixture
def copied(done, tmp_path):
    shutil.copytree(done, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/step-000003")
    return tmp_path / "run"


def test_numbers_are_finite_and_no_truth_values():
    assert all(map(is_number, (0, -3, 10**299, 0.5, -1e308)))
    assert not any(map(is_number, (10**301, -(10**400), True, "1", None, float("inf"))))
    assert not is_number(float("nan"))


def test_damage_before_the_checkpoint_is_named(copied, runner):
    path = copied / "metrics.jsonl"
    one, two, three = path.read_bytes().splitlines()
    for number, line in enumerate(DAMAGE):
        before = [line, two, three] if number % 2 else [one, line, three]
        path.write_bytes(b"\n".join(before) + b"\n")
        place = before.index(line) + 1
        with pytest.raises(UserError, match=rf"metrics\.jsonl, line {place} is not a line of"):
            runner.resume(copied)
        assert path.read_bytes() == b"\n".join(before) + b"\n"


@pytest.mark.parametrize("line", DAMAGE[:2])
def test_damage_behind_the_checkpoint_is_cut(line, copied, done, runner):
    path = copied / "metrics.jsonl"
    one, two, three = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([one, two, line, three]))
    runner.go(runner.resume(copied))
    assert without_times(copied) == without_times(done)


def test_a_file_that_ends_before_the_checkpoint_is_named(copied, runner):
    path = copied / "metrics.jsonl"
    for left in (path.read_bytes().split(b"\n")[0] + b"\n", b""):
        path.write_bytes(left)
        with pytest.raises(UserError, match=r"ends before step 2, that of the checkpoint"):
            runner.resume(copied)


def test_a_line_that_is_being_written_is_left_out_and_others_are_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"ste')
    assert read_metrics(tmp_path) == [{"step": 1}]
    path.write_bytes(b'{"step": 1}\n{"ste\n')
    with pytest.raises(UserError, match=r"line 2 is not a line of metrics"):
        read_metrics(tmp_path)


OWN = r"""
def own(completions, log_metric, log_extra, **columns):
    log_metric("own", 2.0)
    log_metric("half \ud800", 3.0)
    log_extra("note \udc00", ["\ud83d" + text for text in completions])
    log_extra("things", [{"a": "\ud800"} for _ in completions])
    return [1.0] * len(completions)


def liked(completions, **columns):
    return [1.0] * len(completions)


def taken(completions, log_metric, **columns):
    log_metric("step", 1.0)
    return [1.0] * len(completions)


def of_a_term(completions, log_metric, **columns):
    log_metric("kl", 1.0)
    return [1.0] * len(completions)
"""


def test_half_surrogate_pairs_arrive_as_escapes(runner, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "CHARACTERS", models.CHARACTERS + "\\ud")  # the model knows escapes
    lab = models.Lab.make(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    folder = tmp_path / "run"
    (tmp_path / "data.jsonl").write_text('{"prompt": "1\\ud800+1="}\n' * 4)
    raw = lab.raw(training={"steps": 1}, data={"files": [str(tmp_path / "data.jsonl")]})
    raw["reward"] = {"functions": [f"{tmp_path}/own.py:own"]}
    runner.whole(raw, folder)
    table = pq.read_table(folder / "rollouts/step-000001.parquet").to_pydict()
    assert all(note.startswith("\\ud83d") for note in table["note \\udc00"])
    assert table["prompt"][0] == "1\\ud800+1="
    assert table["things"][0] == '{"a": "\\ud800"}'
    (line,) = without_times(folder)
    assert (line["own"], line["half \ud800"]) == (2.0, 3.0)
    write_report([folder], folder / "report.html")
    assert "half \\ud800" in (folder / "report.html").read_text(encoding="utf-8")


def test_messages_are_recorded_in_their_own_letters(runner, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "CHARACTERS", models.CHARACTERS + "ة")
    lab = models.Lab.make(tmp_path)
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}=")
    row = '{"prompt": [{"role": "user", "content": "1ة"}]}\n'
    (tmp_path / "data.jsonl").write_text(row * 4, encoding="utf-8")
    (tmp_path / "own.py").write_text(OWN)
    raw = lab.raw(training={"steps": 1}, data={"files": [str(tmp_path / "data.jsonl")]})
    raw["model"]["chat_template"] = str(tmp_path / "chat.jinja")
    raw["reward"] = {"functions": [f"{tmp_path}/own.py:liked"]}
    runner.whole(raw, tmp_path / "run")
    table = pq.read_table(tmp_path / "run/rollouts/step-000001.parquet").to_pydict()
    assert table["prompt"][0] == '[{"role": "user", "content": "1ة"}]'


def test_a_reward_may_not_log_the_step(lab, runner, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    raw = lab.raw(training={"steps": 1})
    raw["reward"] = {"functions": [f"{tmp_path}/own.py:taken"]}
    with pytest.raises(UserError, match=r"called log_metric\('step'\): the trainer logs"):
        runner.whole(raw, tmp_path / "run")


def test_a_reward_may_not_log_what_a_loss_term_logs(lab, runner, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    raw = lab.raw(recipe="grpo(beta=0.1)", training={"steps": 1})
    raw["reward"] = {"functions": [f"{tmp_path}/own.py:of_a_term"]}
    with pytest.raises(UserError, match="gives the metric kl, which a loss term has of its own"):
        runner.whole(raw, tmp_path / "run")
