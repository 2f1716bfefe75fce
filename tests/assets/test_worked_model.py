"""The model `tiny-worked` in the package: it is small, shows its work, and leaves room to learn."""

import importlib.util
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.assets import SHIPPED, model_folder, task_of
from strop.engines.asynchronous import asynchronous
from strop.engines.base import Request
from strop.engines.local.engine import LocalEngine
from strop.environments.worked_countdown import (
    MAX_TOKENS,
    correct,
    first_false_step,
    is_right,
    prompt_text,
    puzzles,
    supervised_puzzles,
)

FOLDER = model_folder("tiny-worked")
TOKENIZER = AutoTokenizer.from_pretrained(FOLDER)
NUM_ROLLOUTS = 16
TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    sys.path.insert(0, str(TOOLS))  # the tool imports its neighbour, as when it is run
    try:
        spec = importlib.util.spec_from_file_location(
            "build_worked_model", TOOLS / "build_worked_model.py"
        )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(TOOLS))


@pytest.fixture(scope="module")
def sampled() -> tuple[list[str], list[dict]]:
    """Sixteen completions at temperature 1 for each of the first 32 held-out puzzles."""
    rows = [row for row in puzzles("held_out")[:32] for _ in range(NUM_ROLLOUTS)]
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    requests = [
        Request(tuple(ids), MAX_TOKENS, stop_ids=(TOKENIZER.eos_token_id,), seed=seed)
        for seed, ids in enumerate(TOKENIZER([row["prompt"] for row in rows])["input_ids"])
    ]
    found = asynchronous(LocalEngine(model, TOKENIZER)).sample(requests)
    ids = [[id for event in each.events for id in event.ids] for each in found]
    return TOKENIZER.batch_decode(ids, skip_special_tokens=True), rows


def test_folder_is_small_and_weights_are_bfloat16():
    files = [path for path in FOLDER.iterdir() if path.is_file()]
    assert {path.name for path in files} == {
        path.name for path in model_folder("tiny").iterdir() if path.is_file()
    }
    assert sum(path.stat().st_size for path in files) <= 4 * 2**20
    weights = load_file(FOLDER / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert 1e6 <= sum(weight.numel() for weight in weights.values()) <= 2e6


def test_both_models_have_one_vocabulary():
    assert TOKENIZER.get_vocab() == AutoTokenizer.from_pretrained(model_folder("tiny")).get_vocab()


def test_each_model_has_its_task_and_any_other_model_the_first():
    assert {name: task_of(name) for name in SHIPPED} == {
        "tiny": "countdown", "tiny-worked": "worked_countdown"
    }  # fmt: skip
    assert task_of("some/model") == "countdown"


def test_success_leaves_room_to_learn_and_something_to_learn_from(sampled):
    completions, rows = sampled
    numbers, targets = [r["numbers"] for r in rows], [r["target"] for r in rows]
    rewards = torch.tensor(correct([], completions, numbers, targets))
    assert 0.15 <= rewards.mean() <= 0.35
    assert rewards.view(-1, NUM_ROLLOUTS).amax(1).mean() >= rewards.mean() + 0.3  # pass@16


def test_lengths_have_a_tail_and_answers_end(sampled):
    completions, _ = sampled
    lengths = torch.tensor([len(text) + 1.0 for text in completions])
    assert lengths.quantile(0.1) >= 20
    assert lengths.quantile(0.95) >= 2 * lengths.median()
    assert (lengths <= MAX_TOKENS).float().mean() > 0.98


def test_some_answers_are_wrong_in_one_step_some_are_mended(sampled):
    completions, rows = sampled
    found = [
        (
            is_right(text, r["numbers"], r["target"]),
            first_false_step(text, r["numbers"], r["target"]),
        )
        for text, r in zip(completions, rows, strict=True)
    ]
    assert any(right and place >= 0 for right, place in found)
    assert sum(not right and place >= 1 for right, place in found) > 50


def test_build_is_deterministic(tool, monkeypatch):
    monkeypatch.setattr(tool, "BATCH_SIZE", 8)
    hashes = [
        tool.build_tiny_model.weights_hash(tool.build(num_steps)[0]) for num_steps in (2, 2, 1)
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_supervised_answers_are_right_until_the_last_phase(tool):
    rng = random.Random(0)
    for numbers, target in rng.sample(supervised_puzzles(), 200):
        text = tool.draw_answer(numbers, target, False, rng)
        assert is_right(text, numbers, target)
        assert first_false_step(text, numbers, target) == -1
        assert len(text) < MAX_TOKENS


def test_the_last_phase_has_what_its_shares_say(tool):
    rng = random.Random(0)
    rows = [(*p, tool.draw_answer(*p, True, rng)) for p in rng.choices(supervised_puzzles(), k=800)]
    right = [is_right(text, numbers, target) for numbers, target, text in rows]
    assert sum(right) / len(rows) == pytest.approx(tool.SHARE_RIGHT, abs=0.06)
    claims = [
        text.split("\n")[-2].endswith(f"={target}")
        for (_, target, text), good in zip(rows, right, strict=True) if not good
    ]  # fmt: skip
    assert sum(claims) / len(claims) == pytest.approx(tool.SHARE_CLAIMED, abs=0.08)
    assert all(len(text) < MAX_TOKENS for *_, text in rows)


def test_learns_answers_only(tool):
    ids, labels = next(tool.draw_batches(tool.build_tiny_model.build_tokenizer(192), 16))
    theirs = {prompt_text(*puzzle) for puzzle in supervised_puzzles()}
    for row_ids, row_labels in zip(ids, labels, strict=True):
        learnt = row_labels != -100
        prompt = TOKENIZER.decode(row_ids[: int(learnt.nonzero()[0])])
        assert prompt in theirs
        assert TOKENIZER.decode(row_labels[learnt]).endswith("<eos>")
