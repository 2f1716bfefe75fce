"""The probe against a plain forward pass of the whole model."""

import math
from types import SimpleNamespace

import pytest
import torch
from models import save_model
from transformers import AutoModelForCausalLM

from strop.batch.batch import Batch
from strop.parts.probe.measure_prompt_confidence import MeasurePromptConfidence
from strop.training.learner.policy import Policy

PROMPTS = ([5, 9, 3, 7, 12, 4], [6, 8, 11])


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    folder = save_model(tmp_path_factory.mktemp("model"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return Policy(model)


def rollouts() -> Batch:
    """Groups (1, 0, 1): prompts of 3, 6 and 3 tokens, answers of 2, 3 and 1, an observation."""
    rows = [(1, [7, 7], []), (0, [3, 4, 5], [9]), (1, [8], [2, 2])]
    ids, mask, turn = [], [], []
    for row, (group, answer, seen) in enumerate(rows):
        prompt = PROMPTS[group]
        ids += [*prompt, *answer, *seen]
        mask += [False] * len(prompt) + [True] * len(answer) + [False] * len(seen)
        turn += [row] * (len(prompt) + len(answer) + len(seen))
    return Batch(
        {
            "turn_T": torch.tensor(turn), "id_T": torch.tensor(ids), "mask_T": torch.tensor(mask),
            "rollout_K": torch.arange(3), "group_B": torch.tensor([1, 0, 1]),
            "uid_P": torch.arange(2), "draw_P": torch.zeros(2, dtype=torch.int64),
        }
    )  # fmt: skip


def expected(policy, share):
    """Per prompt: softmax of the logits, sorted in Python."""
    found = []
    for prompt in PROMPTS:
        with torch.no_grad():
            logits = policy.model(torch.tensor([prompt])).logits[0] / 0.7
        logp = torch.log_softmax(logits, dim=-1)
        values = sorted(float(logp[t - 1, prompt[t]]) for t in range(1, len(prompt)))
        lowest = values[: max(int(share * len(values)), 1)]
        found.append(math.exp(sum(lowest) / len(lowest)))
    return found


@pytest.mark.parametrize("share", [0.2, 0.6, 1.0])
def test_is_the_confidence_in_the_least_likely_tokens(policy, share):
    calls = []

    def score(batch, name, names):
        calls.append((batch.size("B"), batch.size("T"), name))
        return policy.columns(batch, names, 0.7)

    probe = MeasurePromptConfidence(share)
    found = probe(rollouts(), SimpleNamespace(score=score))
    first, second = expected(policy, share)
    assert found.tolist() == pytest.approx([second, first, second], rel=1e-4)
    assert calls == [(2, 9, "current")]  # the prompts alone, each once


def test_a_prompt_of_one_token_is_certain(policy):
    batch = Batch(
        {
            "turn_T": torch.tensor([0, 0]), "id_T": torch.tensor([5, 6]),
            "mask_T": torch.tensor([False, True]), "rollout_K": torch.zeros(1, dtype=torch.int64),
            "group_B": torch.zeros(1, dtype=torch.int64), "uid_P": torch.zeros(1),
            "draw_P": torch.zeros(1),
        }
    )  # fmt: skip
    score = SimpleNamespace(score=lambda batch, _, names: policy.columns(batch, names, 0.7))
    assert MeasurePromptConfidence()(batch, score).tolist() == [1.0]
