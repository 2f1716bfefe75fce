"""Runs over a vLLM in this process: the numbers of the local engine."""

import json

import pytest
from commands import Strop

ARGS = "engine.args=--enforce-eager --kv-cache-memory-bytes 256M"
WORDS = ["--model", "tiny", "training.steps=2", "evaluation.every=0", "sampling.num_prompts=4",
         "training.lr=1e-3"]  # fmt: skip


CUT = ("rollout.top_p=0.8", "rollout.sampling_mask=renormalise")


# They cover entropy and rules; forks; adapters; kept sets.
@pytest.mark.parametrize(
    "words", [("hapo",), ("spo_tree",), ("grpo", "model.lora_rank=2"), ("grpo", *CUT)]
)
def test_a_run_has_the_numbers_of_the_local_engine(words, tmp_path, monkeypatch, capsys):
    strop = Strop(monkeypatch, capsys)
    found = []
    for name, engine in (("here", ["engine.kind=vllm_here", ARGS]), ("local", [])):
        result = strop("train", *words, *WORDS, *engine, "--out", tmp_path / name)
        assert result.code == 0, result.err
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        found.append([json.loads(line) for line in lines])
    for here, local in zip(*found, strict=True):
        assert here["reward"] == local["reward"]
        for metric in ("grad_norm", "loss", "entropy", "sampling/sampling_logp_difference/mean"):
            if metric in local:
                assert here[metric] == pytest.approx(local[metric], rel=2e-3, abs=1e-5)
    assert len(found[0]) == 2
