"""`strop plan` as a user types it, on a real run."""

import json
import re

import pytest
from configurations import QWEN3_06B
from runs import Runner


@pytest.fixture(scope="module")
def run(lab, tmp_path_factory):
    """A finished run of six steps, all of which keep their rollouts."""
    folder = tmp_path_factory.mktemp("planned") / "run"
    Runner().whole(lab.raw(training={"steps": 6, "rollouts_every": 1}), folder)
    return folder


def test_a_table_and_a_page(strop, run, tmp_path):
    out = tmp_path / "pages/plan.html"
    result = strop("plan", run, "--workers", "1,4,2", "--staleness", "2,1", "--out", out)
    assert (result.code, result.err) == (0, "")
    assert "a step: 8 answers to 2 prompts" in result.out
    rows = [line.split() for line in result.out.splitlines() if line.rstrip().endswith("%")]
    assert [row[0] for row in rows if row[0].isdigit()] == ["1", "2", "4"]
    assert len(rows) == 2 + 6 + 6
    assert "async 1, partial" in result.out
    assert re.search(r"^4 workers: .+", result.out, re.M)
    assert all(len(line) <= 80 for line in result.out.splitlines() if line.rstrip().endswith("%"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    spent = [line["step_time"] for line in lines if line["step"] > 1]
    # costs leave out what something else on the machine slowed
    assert 0.75 * min(spent) < float(rows[0][4]) < 1.25 * max(spent)
    page = out.read_text(encoding="utf-8")
    for title in ("Throughput", "Idle", "Who idles when, of 4", "Every layout", "async 2, partial"):
        assert title in page
    assert "http-equiv" in page
    assert "engine 1" in page


def test_lengths_prompts_and_a_second_run(strop, run, tmp_path):
    words = ["--lengths", "15,50", "--prompts", "64", "--spare", "0", "--exchange", "0.5"]
    result = strop("plan", run, run, "--workers", "2", *words, "--out", tmp_path / "p.html")
    assert result.code == 0, result.err
    assert "a step: 256 answers to 64 prompts" in result.out
    assert "partial" not in result.out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--workers", "0"], "--workers 0: 0 is not between 1 and 65536"),
        (
            ["--workers", "2,,3"],
            "--workers takes whole numbers with commas between them, not '2,,3'",
        ),
        (["--workers", "2.5"], "--workers takes whole numbers"),
        (["--staleness", "0"], "--staleness 0: 0 is not between 1 and 256"),
        (["--lengths", "long"], "--lengths takes numbers with commas between them, not 'long'"),
        (["--lengths", "1,2,3"], "give MEAN or MEAN,P99"),
        (["--lengths", "80,20"], "99th percentile at least the mean"),
        (["--spare", "-1"], "--spare"),
        (["--exchange", "inf"], "--exchange"),
        (["--prompts", "-3"], "--prompts"),
        (["--lengths", "300,2000"], "with --extrapolate"),
        (["--kind", "H100"], "--kind is for a plan of a model: --gpus"),
        (["--prompts", "65537"], "--prompts 65537 is not between 0 and 65536"),
    ],
)
def test_what_is_given_wrongly_is_one_line(strop, run, tmp_path, words, why):
    out = tmp_path / "plan.html"
    result = strop("plan", run, *words, "--out", out)
    assert result.code == 2
    assert why in result.err
    assert result.err.count("\n") == 1
    assert not out.exists()


def test_lengths_far_above_those_of_the_run_are_said(strop, run, tmp_path):
    words = ["--lengths", "300,2000", "--extrapolate", "--workers", "1"]
    result = strop("plan", run, *words, "--out", tmp_path / "plan.html")
    assert result.code == 0, result.err
    assert re.search(r"--lengths 300,2000 is \d+ times the longest answer", result.out)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The configuration of a small model."""
    folder = tmp_path_factory.mktemp("models") / "Qwen3-0.6B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN3_06B))
    return folder


GPUS = ["--kind", "h100", "--prompts", "16", "--answers", "4", "--spare", "0"]
LENGTHS = ["--lengths", "800,3000", "--max-tokens", "2048"]


def test_the_size_of_a_step_that_nothing_gives_is_named_as_assumed(strop, model, tmp_path):
    words = ["--gpus", "1", "--kind", "h100", "--lengths", "80", "--answers", "2", "--spare", "0"]
    result = strop("plan", model, *words, "-o", tmp_path / "plan.html")
    assert result.code == 0, result.err
    assert "a step of 128 prompts with 2 answers is assumed, as on clusters" in result.out


def test_a_model_without_a_run(strop, model, tmp_path):
    out = tmp_path / "plan.html"
    result = strop(
        "plan", model, "--gpus", "1,4", *GPUS, *LENGTHS, "--assume", "mfu=0.3", "-o", out
    )
    assert (result.code, result.err) == (0, "")
    assert "Qwen3-0.6B: 596M parameters, 596M of them for a token, 112 KiB of cache" in result.out
    # 1 forward, 2 backward, 1 recomputed and 1 of another pass
    assert "operations a token forward, 5 times that in training, and" in result.out
    assert "a step: 64 answers to 16 prompts of 200 tokens" in result.out
    assert "assumed, not measured (--assume NAME=VALUE): mfu=0.3, " in result.out
    assert "give your run's with --prompts and --answers" not in result.out
    rows = [line.split() for line in result.out.splitlines() if line.rstrip().endswith("%")]
    assert [row[0] for row in rows if row[0].isdigit()] == ["1", "4"]
    assert len(rows) == 1 + 2
    assert re.search(r"^4 GPUs: .*\(tp\d+\*? / .*dp\d", result.out, re.M)
    page = out.read_text(encoding="utf-8")
    for title in ("How GPUs share the model", "Memory of a GPU, GiB", "optimizer", "Qwen3-0.6B"):
        assert title in page


def test_a_model_as_json(strop, model, tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("\n".join(["100", "200", "300", "4000"] * 8))
    words = ["--gpus", "2", *GPUS, "--lengths", lengths, "--json"]
    result = strop("plan", model / "config.json", *words, "-o", tmp_path / "plan.html")
    assert result.code == 0, result.err
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [row["layout"] for row in rows] == ["synchronous", "async 1"]
    for row in rows:
        stages = ("generating", "training")
        parts = dict.fromkeys(stages, 0.0)
        for name, size in row.items():
            stage, _, what = name.partition("_")
            if stage in stages and what.endswith("_gib"):
                parts[stage] += size
        assert all(row[f"{stage}_gib"] == pytest.approx(parts[stage]) for stage in stages)
        assert row["training_waits_for"]
    # the longest answer alone takes as long as the round
    assert rows[0]["step_seconds"] > 4000 * 0.004


def test_most_tokens_cut_the_lengths_of_a_file(strop, model, tmp_path):
    (tmp_path / "long.txt").write_text("\n".join(["100", "200", "300", "4000"] * 8))
    (tmp_path / "cut.txt").write_text("\n".join(["100", "200", "300", "500"] * 8))
    found = [
        strop(
            "plan", model, "--gpus", "2", *GPUS, "--lengths", tmp_path / name,
            "--max-tokens", "500", "--json", "-o", tmp_path / "plan.html",
        ).out
        for name in ("long.txt", "cut.txt")
    ]  # fmt: skip
    assert found[0]
    assert found[0] == found[1]


def test_gpus_that_generate_are_given(strop, model, tmp_path):
    words = ["--gpus", "8", *GPUS, *LENGTHS, "--generate", "6", "--json", "-o", tmp_path / "p.html"]
    rows = [json.loads(line) for line in strop("plan", model, *words).out.splitlines()]
    assert [(row["generate"], row["train"]) for row in rows] == [(8, 8), (6, 2)]


def test_a_run_calibrates_a_model(strop, model, run, tmp_path):
    words = ["--gpus", "2", *GPUS, "--json", "-o", tmp_path / "plan.html"]
    result = strop("plan", model, run, *words)
    assert result.code == 0, result.err
    slow = json.loads(result.out.splitlines()[0])["step_seconds"]
    longest = max(json.loads(line)["completions/max_length"]
                  for line in (run / "metrics.jsonl").read_text().splitlines()
                  if "completions/max_length" in line)  # fmt: skip
    result = strop("plan", model, *words, "--lengths", f"{longest},{longest}")
    assert slow > 10 * json.loads(result.out.splitlines()[0])["step_seconds"] - 10 * 10
    shown = strop("plan", model, run, *words[:-3], "-o", tmp_path / "plan.html").out
    assert re.search(r"measured in run: a decode step takes \S+ times as long as assumed", shown)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--gpus", "4"], "give --kind: A100, B200"),
        (["--gpus", "4", "--kind", "H1000"], "did you mean H100"),
        (["--gpus", "4", "--kind", "H100"], "give the lengths of answers"),
        (["--gpus", "4", *GPUS, "--lengths", "none.txt"], "names no file here, takes numbers"),
        (["--gpus", "4", *GPUS, *LENGTHS, "--workers", "4"], "--workers is for a plan from a run"),
        (["--gpus", "4", *GPUS, *LENGTHS, "--assume", "mfu=3"], "at most 1"),
        (["--gpus", "0", *GPUS, *LENGTHS], "--gpus 0: 0 is not between 1 and 65536"),
        (["--gpus", "4", *GPUS, "--lengths", "3000,9000", "--max-tokens", "100"], "mean is above"),
        (
            ["--gpus", "8", *GPUS, *LENGTHS, "--generate", "8"],
            "--generate 8 is not between 0 and 7",
        ),
        (
            ["--gpus", "32", *GPUS, *LENGTHS, "--generate", "6"],
            "whole nodes of 8, or fewer or more",
        ),
        (
            ["--gpus", "2", *GPUS, *LENGTHS, "--prompts", "60000", "--answers", "60"],
            "more than 1,0",
        ),
        (["--gpus", "1", *GPUS, "--lengths", "20000,60000"], "it needs at least"),
    ],
)
def test_what_is_given_wrongly_of_a_model_is_one_line(strop, model, tmp_path, words, why):
    out = tmp_path / "plan.html"
    result = strop("plan", model, *words, "--out", out)
    assert result.code == 2
    assert why in result.err
    assert result.err.count("\n") == 1
    assert not out.exists()


def test_a_folder_that_is_no_model(strop, tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    words = ["--gpus", "1", "--kind", "H100", "--lengths", "10,20", "-o", tmp_path / "plan.html"]
    result = strop("plan", tmp_path, *words)
    assert result.code == 2
    assert (
        "lacks num_hidden_layers, num_attention_heads, vocab_size, intermediate_size" in result.err
    )


def test_no_run(strop, tmp_path):
    result = strop("plan", tmp_path / "none", "--out", tmp_path / "plan.html")
    assert result.code == 2
    assert "is not a run: it does not exist" in result.err
