"""The tiny model in the package: it loads offline, is small, and leaves room to learn."""

import importlib.util
import json
import random
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.assets import model_folder
from strop.environments.countdown import MAX_TOKENS, correct, is_well_formed, puzzles

TOKENIZER = AutoTokenizer.from_pretrained(model_folder("tiny"))
CHARACTERS = "0123456789+-*/(),:= \n"
NUM_ROLLOUTS = 16


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "build_tiny_model.py"
    spec = importlib.util.spec_from_file_location("build_tiny_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sampled() -> tuple[list[str], list[dict]]:
    """Sixteen completions at temperature 1 for each of the first 64 held-out puzzles."""
    rows = [row for row in puzzles("held_out")[:64] for _ in range(NUM_ROLLOUTS)]
    model = AutoModelForCausalLM.from_pretrained(model_folder("tiny"), dtype=torch.float32)
    inputs = TOKENIZER([row["prompt"] for row in rows], return_tensors="pt", padding=True)
    torch.manual_seed(0)
    ids = model.generate(**inputs, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=12)
    new_ids = ids[:, inputs["input_ids"].shape[1] :]
    return TOKENIZER.batch_decode(new_ids, skip_special_tokens=True), rows


def test_folder_is_small_and_weights_are_bfloat16():
    files = [path for path in model_folder("tiny").iterdir() if path.is_file()]
    assert {path.name for path in files} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in files) <= 2 * 2**20
    weights = load_file(model_folder("tiny") / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}


def test_configuration_names_qwen3_and_the_tokens():
    config = json.loads((model_folder("tiny") / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["vocab_size"] == len(TOKENIZER)
    assert config["eos_token_id"] == TOKENIZER.eos_token_id
    assert config["pad_token_id"] == TOKENIZER.pad_token_id
    assert TOKENIZER.chat_template is None


def test_success_leaves_room_to_learn_and_something_to_learn_from(sampled):
    completions, rows = sampled
    numbers, targets = [r["numbers"] for r in rows], [r["target"] for r in rows]
    rewards = torch.tensor(correct([], completions, numbers=numbers, target=targets))
    assert 0.10 <= rewards.mean() <= 0.25
    assert 0.65 <= rewards.view(-1, NUM_ROLLOUTS).amax(1).mean() <= 0.95  # pass@16


def test_nearly_all_answers_are_well_formed_and_end(sampled):
    completions, rows = sampled
    good = [is_well_formed(c, r["numbers"]) for c, r in zip(completions, rows, strict=True)]
    assert sum(good) / len(good) > 0.93
    assert sum(len(c) < MAX_TOKENS for c in completions) / len(good) > 0.99


@given(st.text(CHARACTERS))
def test_tokenizer_round_trip(text):
    ids = TOKENIZER(text)["input_ids"]
    assert len(ids) == len(text)
    assert TOKENIZER.unk_token_id not in ids
    assert TOKENIZER.decode(ids) == text


def test_other_characters_become_the_unknown_token():
    assert TOKENIZER.decode(TOKENIZER("3é+x")["input_ids"]) == "3<unk>+<unk>"


def test_build_is_deterministic(tool, monkeypatch):
    monkeypatch.setattr(tool, "BATCH_SIZE", 16)
    hashes = [tool.weights_hash(tool.build(num_steps)[0]) for num_steps in (3, 3, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_tokenizer_of_the_build_is_the_shipped_one(tool, tmp_path):
    tool.build_tokenizer().save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shipped = json.loads((model_folder("tiny") / name).read_text())
        assert json.loads((tmp_path / name).read_text()) == shipped


def test_wrong_answers_are_wrong_on_purpose(tool):
    rng, row = random.Random(0), puzzles("train")[0]
    for share_right, expected in ((0.0, 0.0), (1.0, 1.0)):
        answers = [tool.draw_answer(row, share_right, rng) for _ in range(50)]
        assert all(is_well_formed(answer, row["numbers"]) for answer in answers)
        rewards = correct([], answers, [row["numbers"]] * 50, [row["target"]] * 50)
        assert set(rewards) == {expected}


def test_build_learns_answers_only_and_from_train_puzzles_only(tool):
    train = {row["prompt"] for row in puzzles("train")}
    ids, labels = tool.draw_batch(puzzles("train"), tool.build_tokenizer(), 1.0, random.Random(1))
    for row_ids, row_labels in zip(ids, labels, strict=True):
        learnt = row_labels != tool.IGNORED
        prompt, answer = TOKENIZER.decode(row_ids).split("=")
        assert prompt + "=" in train
        assert TOKENIZER.decode(row_labels[learnt]) == answer.replace("<pad>", "")
        assert answer.replace("<pad>", "").endswith("<eos>")
