"""Commands over a completions server give the same output as over the model itself."""

import json

import pytest
from commands import Strop
from fakes.completions_server import serve
from models import Lab

from strop.api.evaluate import evaluate
from strop.engines.local.engine import LocalEngine
from strop.training.learner import models


@pytest.fixture
def served():
    loaded = models.load("tiny")
    with serve(
        LocalEngine(loaded.model, loaded.tokenizer), len(loaded.tokenizer),
        told="tempered", models={"tiny": 128},
    ) as found:  # fmt: skip
        yield found


def test_eval_scores_the_model_of_the_server(strop: Strop, served):
    """At a temperature next to 0 the answers are the likeliest ones, whatever the draws."""
    words = ["eval", "tiny", "--prompts", "6", "--samples", "2", "--k", "1,2", "--json"]
    words += ["--temperature", "0.001"]
    ours = strop(*words, "--engine", f"completions(url='{served.url}')")
    theirs = strop(*words)
    assert (ours.code, theirs.code) == (0, 0)
    found, expected = json.loads(ours.out), json.loads(theirs.out)
    assert {name for name in expected if name not in found} == {
        "entropy", "entropy/low", "entropy/high"
    }  # fmt: skip
    for name, value in found.pop("by_prompt").items():
        assert value == pytest.approx(expected["by_prompt"][name], abs=1e-5)
    assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-5)
    assert found["completions/mean_length"] > 3
    assert len(served.asked) == 12


def test_sample_prints_answers_of_the_server(strop: Strop, served):
    words = ["sample", "tiny", "3,5,7:22=", "-n", "2", "--temperature", "0.001"]
    found = strop(*words, "--engine", f"completions(url='{served.url}', model='tiny')")
    expected = strop(*words).out  # its numbers are exactly 0 there
    assert found.out.replace("-0.000", " 0.000") == expected
    assert expected.count("\n") == 2


def test_requests_that_fail_are_told_and_cost_no_other(strop: Strop, served, capsys):
    """Of six prompts with two answers each the first one asked for fails."""
    first = []

    def instead(body):
        seed = body.get("seed")  # what finds out about the server has none
        if seed is not None and not first:
            first.append(seed)
        return (400, '{"error": "no such luck"}') if seed in first else None

    served.instead = instead
    engine = f"completions(url='{served.url}', num_parallel=1)"
    words = ["eval", "tiny", "--prompts", "6", "--samples", "2", "--k", "1,2", "--json"]
    found = strop(*words, "--engine", engine)
    assert found.code == 0
    assert (
        "note: requests failed (1), their answers are left unscored; the first: the server at"
        in found.err
    )
    assert "HTTP 400: no such luck" in found.err
    assert json.loads(found.out)["num_unscored_prompts"] == 0
    first.clear()
    evaluate("tiny", prompts=6, samples=2, k=(1, 2), engine=engine)
    assert "note: requests failed (1)" in capsys.readouterr().err
    first.clear()
    result = strop("sample", "tiny", "3,5,7:22=", "-n", "2", "--engine", engine)
    assert result.code == 0
    assert result.out.count("(failed: the server at") == 1
    assert result.out.count("\n") == 2


def test_training_is_refused_before_the_run_begins(lab: Lab, strop: Strop, served, tmp_path):
    words = lab.arguments("engine.kind=completions", f"engine.url={served.url}")
    found = strop("train", *words, "--out", tmp_path / "run")
    assert found.code == 2
    assert "the engine 'completions' takes none" in found.err
    assert "strop eval and strop sample" in found.err
    assert not (tmp_path / "run").exists()
