"""`strop plan` as a user types it, on a real run."""

import json
import re

import pytest
from runs import Runner


@pytest.fixture(scope="module")
def run(lab, tmp_path_factory):
    """A finished run of six steps, all of which keep their rollouts."""
    folder = tmp_path_factory.mktemp("planned") / "run"
    Runner().whole(lab.raw(training={"steps": 6, "rollouts_every": 1}), folder)
    return folder


def test_a_table_and_a_page(strop, run, tmp_path):
    out = tmp_path / "pages/plan.html"
    said = strop("plan", run, "--workers", "1,4,2", "--staleness", "2,1", "--out", out)
    assert (said.code, said.err) == (0, "")
    assert "a step: 8 answers to 2 prompts" in said.out
    rows = [line.split() for line in said.out.splitlines() if line.rstrip().endswith("%")]
    assert [row[0] for row in rows if row[0].isdigit()] == ["1", "2", "4"]
    assert len(rows) == 2 + 6 + 6
    assert "async 1, partial" in said.out
    assert re.search(r"^4 workers: .+", said.out, re.M)
    assert all(len(line) <= 80 for line in said.out.splitlines() if line.rstrip().endswith("%"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    spent = [line["step_time"] for line in lines if line["step"] > 1]
    assert float(rows[0][4]) == pytest.approx(sum(spent) / len(spent), rel=0.25)
    page = out.read_text(encoding="utf-8")
    for title in ("Throughput", "Idle", "Who idles when, of 4", "Every layout", "async 2, partial"):
        assert title in page
    assert "http-equiv" in page
    assert "engine 1" in page


def test_lengths_prompts_and_a_second_run(strop, run, tmp_path):
    words = ["--lengths", "20,80", "--prompts", "64", "--spare", "0", "--exchange", "0.5"]
    said = strop("plan", run, run, "--workers", "2", *words, "--out", tmp_path / "p.html")
    assert said.code == 0, said.err
    assert "a step: 256 answers to 64 prompts" in said.out
    assert "partial" not in said.out


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
        (["--prompts", "65537"], "--prompts 65537 is not between 0 and 65536"),
    ],
)
def test_what_is_given_wrongly_is_one_line(strop, run, tmp_path, words, why):
    out = tmp_path / "plan.html"
    said = strop("plan", run, *words, "--out", out)
    assert said.code == 2
    assert why in said.err
    assert said.err.count("\n") == 1
    assert not out.exists()


def test_no_run(strop, tmp_path):
    said = strop("plan", tmp_path / "none", "--out", tmp_path / "plan.html")
    assert said.code == 2
    assert "is not a run" in said.err
