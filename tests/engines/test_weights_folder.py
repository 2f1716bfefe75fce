"""The folder through which weights reach another process: whole versions, and no leftovers."""

import contextlib
import errno
import os
import subprocess
import sys
import threading
import warnings

import peft
import pytest
import torch
from models import save_model
from transformers import AutoModelForCausalLM

from strop.engines.weights_folder import (
    JUST_MADE_SECONDS,
    PREFIX,
    WeightsFolder,
    _sweep,
    merged,
    write_adapter,
)
from strop.support.errors import RunStopped, UserError
from strop.training.learner import adapters

MAKE = """
import sys
from strop.engines.weights_folder import WeightsFolder
print(WeightsFolder(1, "", sys.argv[1]).path, flush=True)
"""


def names(folder):
    return sorted(path.name for path in folder.path.iterdir())


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"/none is no folder, .* put there: give another"):
        WeightsFolder(1, "give another", str(tmp_path / "none"))


def test_a_version_is_seen_whole_or_not_at_all(tmp_path):
    folder = WeightsFolder(1, "", str(tmp_path))

    def half(path):
        path.write_text("half")
        assert names(folder) == [".1"]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RunStopped, match=f"weights could not be written to {folder.path}: no room"):
        folder.put("1", half)
    assert names(folder) == []
    assert folder.put("1", lambda path: path.write_text("one")).read_text() == "one"
    folder.put("2", lambda path: path.mkdir())
    assert names(folder) == ["1", "2"]
    folder.clear()
    assert names(folder) == []
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_deleted_by_the_next_one(tmp_path):
    with contextlib.closing(WeightsFolder(1, "", str(tmp_path))) as ours:
        made = subprocess.run(
            [sys.executable, "-c", MAKE, str(tmp_path)], capture_output=True, text=True, check=True
        )
        left = made.stdout.strip()
        long_ago = os.stat(left).st_mtime - 2 * JUST_MADE_SECONDS
        WeightsFolder(1, "", str(tmp_path)).close()
        assert os.path.exists(left)  # for it might not be locked yet
        for path in (left, ours.path):
            os.utime(path, (long_ago, long_ago))
        WeightsFolder(1, "", str(tmp_path)).close()
        assert not os.path.exists(left)
        assert ours.path.exists()
    assert not ours.path.exists()


def adapted(folder, dtype=torch.float32, **options):
    """A random model in a folder with a random adapter of PEFT's."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of embeddings that the head shares
        torch.manual_seed(0)
        config = peft.LoraConfig(r=2, **{"target_modules": ["q_proj", "v_proj"], **options})
        made = peft.get_peft_model(model, config)
        for weight in filter(lambda each: each.requires_grad, made.parameters()):
            torch.nn.init.normal_(weight, std=0.3)
    return made.eval()


def test_an_adapter_of_another_kind_is_not_handed_over(tmp_path):
    """The engine would sample from another model, and nothing would show it."""
    base, ids = save_model(tmp_path / "base"), torch.tensor([[3, 5, 8, 4]])
    plain = adapted(base, use_rslora=True)
    with contextlib.closing(WeightsFolder(1, "", str(tmp_path))) as folder, torch.no_grad():
        whole = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        whole.load_state_dict(merged(plain.get_base_model()))
        torch.testing.assert_close(whole(ids).logits, plain(ids).logits)
        for what, options in (
            ("is a DoRA", {"use_dora": True}),
            ("has whole modules", {"modules_to_save": ["norm"]}),
            ("has biases", {"lora_bias": True}),
            ("changes the embeddings", {"target_modules": ["embed_tokens"]}),
            ("has layers of several ranks or factors", {"alpha_pattern": {"v_proj": 16}}),
            ("has layers of several ranks or factors", {"rank_pattern": {"v_proj": 4}}),
        ):
            model = adapted(base, **options).get_base_model()
            with pytest.raises(UserError, match=f"adapter {what}, which this engine cannot"):
                write_adapter(model, folder, "default", "it")
            if "pattern" not in f"{options}":
                with pytest.raises(UserError, match=f"adapter {what}, which this engine cannot"):
                    merged(model)


def test_weights_with_an_adapter_merged_in_take_no_more_room_than_those_without(tmp_path):
    """PEFT's adapters are float32; the folder has room for the model's own precision."""
    model = adapted(save_model(tmp_path / "base"), torch.bfloat16).get_base_model()
    found, base = merged(model), merged(model, base=True)
    assert {name: each.dtype for name, each in found.items()} == dict.fromkeys(base, torch.bfloat16)
    layer = model.model.layers[0].self_attn.q_proj
    wide = layer.base_layer.weight.float() + layer.get_delta_weight("default")
    assert torch.equal(found["model.layers.0.self_attn.q_proj.weight"], wide.bfloat16())


def test_an_adapter_that_no_plain_model_equals_is_not_merged(tmp_path):
    base = save_model(tmp_path / "base")  # its head has the weights of the embeddings
    with pytest.raises(UserError, match="no plain model is the same: load it with PEFT"):
        adapters.merge(adapted(base, target_modules=["q_proj", "embed_tokens"]))
    with pytest.raises(UserError, match="the adapter cannot be merged: Impossible to merge LoRA"):
        adapters.merge(adapted(base, lora_bias=True))
    found, ids = adapted(base, use_dora=True, modules_to_save=["norm"]), torch.tensor([[3, 5, 8]])
    with torch.no_grad():
        before = found(ids).logits
        torch.testing.assert_close(adapters.merge(found)(ids).logits, before)


def test_a_pipe_of_another_user_does_not_hold_up_a_run(tmp_path):
    pipe = tmp_path / f"{PREFIX}pipe"
    os.mkfifo(pipe)
    swept = threading.Thread(target=_sweep, args=(tmp_path,), daemon=True)
    swept.start()
    swept.join(20)
    waits = swept.is_alive()
    if waits:
        os.close(os.open(pipe, os.O_WRONLY))  # lets it go
    assert not waits
