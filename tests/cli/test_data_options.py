"""Data as a user names it on the command line: columns, validation sets, the best checkpoint."""

import json

import pyarrow.parquet as pq
import pytest
from models import without_times

QUESTIONS = [{"question": f"{n}+1:", "solution": str(n + 1)} for n in range(8)]
REWARD = """
def seen(completions, answer, **columns):
    return [float(a.isdigit() and "solution" not in columns) for a in answer]
"""


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def train(strop, lab, tmp_path, monkeypatch):
    """Runs `strop train` over eight questions; what was said."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "data.jsonl", QUESTIONS)
    (tmp_path / "rewards.py").write_text(REWARD)
    words = ["--model", str(lab.model), "--data", "data.jsonl", "--reward", "rewards.py:seen",
             "training.steps=2", "rollout.max_tokens=4", "sampling.num_prompts=2",
             "sampling.num_rollouts=2", "evaluation.num_samples=2", "--out", "run"]  # fmt: skip
    return lambda *more: strop("train", *words, *more)


def test_renamed_columns_and_named_validation_sets(train, strop, tmp_path):
    """The sets bear their names in the metrics; the best checkpoint by one of them is exported."""
    write(tmp_path / "hard.jsonl", [{"prompt": f"{n}*9:", "answer": str(9 * n)} for n in range(5)])
    result = train(
        "--map", "question=prompt", "--map", "solution=answer", "evaluation.every=1",
        "--validation", "hard=hard.jsonl", "--validation", "easy=data.jsonl",
        "training.best=eval/hard/pass@1", "training.keep_checkpoints=1",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "hard/pass@1 1.000  easy/pass@1 1.000" in result.out
    assert "best checkpoint: step 1, eval/hard/pass@1 1" in result.out
    lines = without_times(tmp_path / "run")
    assert {"eval/hard/mean@n", "eval/easy/pass@2"} <= lines[0].keys() & lines[2].keys()
    assert not [key for key in lines[0] if key.startswith("eval/validation/")]
    assert strop("export", "run", "model", "--best").code == 0
    best = tmp_path / "run/checkpoints/step-000001/model.safetensors"
    assert (tmp_path / "model/model.safetensors").read_bytes() == best.read_bytes()
    scored = strop("eval", "run", "--best", "--split", "hard", "--k", "1", "--trust-files",
                   "--samples", "2", "--json")  # fmt: skip
    assert json.loads(scored.out)["pass@1"] == 1.0


def test_sources_by_weight(train, strop, tmp_path):
    """Each source has its epochs and rewards; what is broken off goes on with the same draws."""
    write(tmp_path / "more.jsonl", [{"prompt": f"{n}*9:", "answer": "x"} for n in range(3)])
    words = ["--map", "question=prompt", "--map", "solution=answer", "--data", "other=more.jsonl",
             "data.weights=[1, 3]", "training.save_every=1", "evaluation.every=0",
             "sampling.num_prompts=6", "training.rollouts_every=1"]  # fmt: skip
    result = train(*words, "training.steps=4")
    assert result.code == 0, result.err
    whole = without_times(tmp_path / "run")
    for line in whole:
        passes = 8 * line["sources/data/epoch"] + 3 * line["sources/other/epoch"]
        assert passes == pytest.approx(6 * line["step"]) == pytest.approx(11 * line["data/epoch"])
        assert line["sources/data/share"] + line["sources/other/share"] == pytest.approx(1)
        assert line.get("sources/data/reward", 1.0) == 1.0
        assert line.get("sources/other/reward", 0.0) == 0.0
    assert whole[-1]["sources/other/epoch"] > 2
    rows = pq.read_table(tmp_path / "run/rollouts/step-000001.parquet").to_pylist()
    for row in rows:  # 1 of 4 draws is of 8 prompts, 3 of 4 are of 3
        chance = 1 / 32 if row["reward"] == 1 else 1 / 4
        assert row["draw/sample_probability"] == pytest.approx(chance)
    again = strop("train", "--resume", "run", "--step", "2")
    assert again.code == 0, again.err
    assert without_times(tmp_path / "run") == whole


def test_sources_by_what_there_is_to_learn_from_them(train, strop, tmp_path):
    """Both are decided after a step (one always right, one always wrong), so they come alike."""
    write(tmp_path / "more.jsonl", [{"prompt": f"{n}*9:", "answer": "x"} for n in range(3)])
    words = ["--map", "question=prompt", "--map", "solution=answer", "--data", "other=more.jsonl",
             "evaluation.every=0", "sampling=draw_sources_by_gap | track_success",
             "sampling.num_prompts=6"]  # fmt: skip
    result = train(*words, "training.steps=2")
    assert result.code == 0, result.err
    first, second = without_times(tmp_path / "run")
    assert first["sources/data/value"] == first["sources/other/value"] == 1.0  # nothing is known
    assert second["sources/data/value"] == second["sources/other/value"] == 0.0
    assert second["sources/other/probability"] == 0.5


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["data.weights=[1, 2]", "--map", "question=prompt"], "2 numbers for 1 sources (data)"),
        (["data.weights=[0]"], "greater than 0"),
        (["vade", "data.weights=[1]"], "vade chooses them itself (draw_uncertain_prompts)"),
        (["rif_rft", "data.weights=[1]"], "rif_rft chooses them itself (draw_solvable_prompts)"),
        (["--map", "question"], "--map takes THEIRS=OURS, such as question=prompt"),
        (["--map", "qestion=prompt"], "renames 'qestion', which data.jsonl does not have (did you"),
        (["--map", "question=prompt", "--map", "answer=solution"], "'answer', which no file has"),
        (["--map", "question=solution"], "row 1 has both 'question' and 'solution'"),
        (["data.columns={question: prompt, solution: prompt}"], "two columns the name 'prompt'"),
        (["data.task_config={questions: /a.jsonl}"], "a text such as '/data/a.jsonl' is quoted"),
        (["data.files=[/a.jsonl, b.jsonl]"], "in [a, b], a text such as '/data/a.jsonl' is quoted"),
        (["data.task_config={size: null}"], "resumes, cannot hold it: Object of type 'NoneType'"),
        (["data.chat_template_kwargs={a: {b: [1, none]}}"], "resumes, cannot hold it: Object of"),
        (["--validation", "train=data.jsonl"], "names a set 'train', as another split is called"),
        (["--validation", "new=nothing.jsonl", "--map", "question=prompt"], "does not exist"),
    ],
)
def test_what_cannot_be_meant_is_refused(train, tmp_path, words, why):
    result = train(*words)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert why in result.err
    assert not (tmp_path / "run").exists()


def test_rows_held_out_of_a_file_that_has_grown_are_refused(train, strop, tmp_path):
    """The split depends on the number of rows: after another one, held-out rows were trained on."""
    renaming = ["--map", "question=prompt", "--map", "solution=answer"]
    result = train(*renaming, "data.heldout_size=3", "evaluation.every=0")
    assert result.code == 0, result.err
    words = ["--samples", "2", "--k", "1", "--json"]
    scored = strop("eval", "run", "--trust-files", *words)
    assert (scored.code, json.loads(scored.out)["num_rollouts"]) == (0, 6)
    chosen = ["--set", "data.heldout_size=2"]  # one row more for training
    refused = strop("eval", "run", "--trust-files", *words, *chosen)
    assert "the train data is not what run was started with: 6 rows now, 5 then" in refused.err
    write(tmp_path / "data.jsonl", [*QUESTIONS, {"question": "8+1:", "solution": "9"}])
    for more in ([], ["--split", "train"]):
        refused = strop("eval", "run", "--trust-files", *words, *more)
        assert (refused.code, refused.out) == (2, ""), more
        assert "6 rows now, 5 then" in refused.err
        assert "differs; give the same data, or score other rows: --data FILE" in refused.err
    other = strop("eval", "run", "--trust-files", "--data", "data.jsonl", *words)
    assert other.code == 0, other.err
    assert json.loads(other.out)["num_rollouts"] == 18
    assert strop("sample", "run", "1+1:", "-n", "1", "--trust-files").code == 0
    (tmp_path / "run/data.json").unlink()  # of before runs had it, or removed by hand
    assert strop("eval", "run", "--trust-files", *words).code == 0


def test_rows_held_out_of_a_chat_are_scored(train, strop, tmp_path):
    """The checksum of the rows is that of the messages which the model reads."""
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    result = train("--map", "solution=answer", "model.chat_template=chat.jinja",
                   "data.heldout_size=3", "evaluation.every=0")  # fmt: skip
    assert result.code == 0, result.err
    words = ["--samples", "2", "--k", "1", "--json", "--trust-files"]
    for more in ([], ["--set", "data.system_prompt=1+"]):  # the latter: other prompts, same rows
        scored = strop("eval", "run", *words, *more)
        assert (scored.code, json.loads(scored.out)["num_rollouts"]) == (0, 6), scored.err
    rows = [{**row, "solution": "0"} for row in QUESTIONS]
    write(tmp_path / "data.jsonl", rows)
    refused = strop("eval", "run", *words)
    assert "the train data is not what run was started with: 5 rows now, 5 then" in refused.err
