"""Loading models: tokenizers of all habits, stop tokens, activations, precision, GGUF files."""

import importlib.util
import json
import sys
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from models import save_model, tokenizer, without_times
from safetensors.torch import load, load_file
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    MixtralConfig,
    OPTConfig,
    Qwen3Config,
)

from strop.batch.batch import from_padded
from strop.support.errors import UserError
from strop.training.learner import models
from strop.training.learner.policy import Policy
from strop.training.loading import write_model
from strop.training.record import checkpoint

CHAT = (
    "{% for m in messages %}<turn>{{ m.role }}:{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant:{% endif %}"
)


@pytest.fixture
def folder(tmp_path):
    return save_model(tmp_path / "model")


def edited(folder, name, **changes):
    path = folder / name
    raw = json.loads(path.read_text())
    raw.update(changes)
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))


# ---- tokenizers


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_side_of_padding_changes_nothing(side, lab, runner, tmp_path):
    folders = [tmp_path / "default", tmp_path / side]
    for place in folders:
        model = save_model(place / "model")
        if place.name == side:
            edited(model, "tokenizer_config.json", padding_side=side)
            assert models.load(str(model)).tokenizer.padding_side == side
        runner.whole(lab.raw(model={"name": str(model)}), place / "run")
    one, two = (without_times(place / "run") for place in folders)
    assert one == two


def test_a_tokenizer_without_padding_trains_as_one_with_it(lab, runner, tmp_path):
    runs = []
    for pad in ("<pad>", None):
        place = tmp_path / str(pad)
        model = save_model(place / "model")
        edited(model, "tokenizer_config.json", pad_token=pad)
        assert models.load(str(model)).tokenizer.pad_token == pad
        runner.whole(lab.raw(reward="even", model={"name": str(model)}), place / "run")
        runs.append(without_times(place / "run"))
    assert runs[0] == runs[1]


def test_without_any_stop_token_answers_run_to_their_limit(lab, runner, tmp_path):
    model = save_model(tmp_path / "model")
    for name in ("config.json", "generation_config.json"):
        edited(model, name, eos_token_id=None)
    edited(model, "tokenizer_config.json", eos_token=None)
    assert models.load(str(model)).stop_ids == ()
    runner.whole(lab.raw(model={"name": str(model)}), tmp_path / "run")
    for line in without_times(tmp_path / "run"):
        assert line["completions/clipped_ratio"] == 1
        assert line["completions/min_length"] == 6


# ---- stop tokens


def test_every_stop_token_of_the_generation_settings_counts(folder):
    edited(folder, "generation_config.json", eos_token_id=[7, 5])
    assert models.load(str(folder)).stop_ids == (1, 5, 7)


def test_the_engine_stops_at_each_of_them(folder, lab, runner, tmp_path):
    edited(folder, "generation_config.json", eos_token_id=list(range(24)))
    run = runner.whole(lab.raw(model={"name": str(folder)}), tmp_path / "run")
    assert run.world.services.sampling.stop_ids == tuple(range(24))
    for line in without_times(tmp_path / "run"):
        assert line["completions/max_length"] == 1
        assert line["completions/clipped_ratio"] == 0


def test_stop_tokens_outside_the_vocabulary_are_left_out(folder):
    edited(folder, "generation_config.json", eos_token_id=[1, 24, 999])
    assert models.load(str(folder)).stop_ids == (1,)


def with_turns(folder):
    """The model's tokenizer with a chat template and its tokens."""
    ours = tokenizer()
    ours.add_special_tokens({"additional_special_tokens": ["<turn>", "<end>"]})
    ours.chat_template = CHAT
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(ours))
    model.save_pretrained(folder)
    ours.save_pretrained(folder)
    return ours


def test_the_end_of_a_turn_is_read_from_the_chat_template(folder):
    ours = with_turns(folder)
    end = ours.convert_tokens_to_ids("<end>")
    assert models.load(str(folder)).stop_ids == (ours.eos_token_id, end)


def test_a_template_that_refuses_such_a_chat_gives_no_stop_token(folder, tmp_path):
    with_turns(folder)
    file = tmp_path / "strict.jinja"
    file.write_text("{{ raise_exception('one message only') }}")
    assert models.load(str(folder), chat_template=str(file)).stop_ids == (1,)


def test_a_template_from_a_file_replaces_the_tokenizers(folder, tmp_path):
    ours = with_turns(folder)
    file = tmp_path / "own.jinja"
    file.write_text(CHAT.replace("<end>", "<eos>"))
    loaded = models.load(str(folder), chat_template=str(file))
    assert loaded.stop_ids == (ours.eos_token_id,)
    with pytest.raises(
        UserError, match=r"cannot read model\.chat_template: .*none\.jinja: No such file"
    ):
        models.load(str(folder), chat_template=str(tmp_path / "none.jinja"))


# ---- activations


def gradients(loaded, batch):
    """Gradients of sum(logp + entropy), and the bytes that autograd kept for them."""
    kept = 0

    def count(tensor):
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    policy = Policy(loaded.model)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        policy.push(
            batch,
            ("logp_T", "entropy_T"),
            lambda rows, columns: {n: torch.ones_like(c) for n, c in columns.items()},
            whole=False,
            temperature=1.0,
        )
    return [p.grad for p in loaded.model.parameters()], kept


def test_checkpointing_keeps_less_and_gives_the_same_gradients(folder):
    rng = torch.Generator().manual_seed(0)
    mask_BL = torch.ones(4, 32, dtype=torch.bool)
    mask_BL[:, 0] = False
    batch = from_padded({"id_T": torch.randint(24, (4, 32), generator=rng)}, mask_BL)
    plain, much = gradients(models.load(str(folder)), batch)
    again, little = gradients(models.load(str(folder), gradient_checkpointing=True), batch)
    assert little < much / 4
    for one, two in zip(plain, again, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        OPTConfig(
            vocab_size=24, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2,
            word_embed_proj_dim=16, max_position_embeddings=64, dropout=0.3, layerdrop=0.3,
            attention_dropout=0.3,
        ),
        MixtralConfig(
            vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, num_local_experts=4,
            router_jitter_noise=0.3,
        ),
    ],
    ids=lambda config: config.model_type,
)  # fmt: skip
def test_nothing_is_drawn_in_a_pass_of_a_model_with_checkpointing(config):
    """Dropout, whatever a model calls it, layers that are left out, and noise before routers."""
    model = AutoModelForCausalLM.from_config(config)
    loaded = models.ready(models.Loaded(model, tokenizer(), ""), gradient_checkpointing=True)
    batch = from_padded({"id_T": torch.arange(4, 20)[None]}, torch.arange(16)[None] > 0)
    policy = Policy(loaded.model)
    one, two = (policy.columns(batch, ("logp_T",), 1.0)["logp_T"] for _ in range(2))
    assert loaded.model.training
    assert torch.equal(one, two)


def test_a_mixture_of_experts_in_float64_is_that_in_float32(tmp_path):
    batch = from_padded({"id_T": torch.arange(4, 20)[None]}, torch.arange(16)[None] > 0)
    folder = save_model(tmp_path / "experts", experts=4)
    one, two = (
        Policy(models.load(str(folder), dtype=dtype).model).columns(batch, ("logp_T",), 1.0)
        for dtype in ("float32", "float64")
    )
    assert two["logp_T"].dtype == torch.float64
    torch.testing.assert_close(one["logp_T"].double(), two["logp_T"], atol=1e-5, rtol=1e-5)


def test_a_run_with_checkpointing_is_the_run_without(lab, runner, tmp_path):
    lines = []
    for on in (False, True):
        raw = lab.raw("grpo(beta=0.01)", model={"gradient_checkpointing": on})
        runner.whole(raw, tmp_path / str(on))
        lines.append(without_times(tmp_path / str(on)))
    for one, two in zip(*lines, strict=True):
        assert one == pytest.approx(two, rel=1e-4, abs=1e-6)


# ---- precision


def test_a_bfloat16_run_moves_goes_on_exactly_and_stays_bfloat16(lab, runner, tmp_path):
    raw = lab.raw(
        reward="even", model={"dtype": "bfloat16"}, training={"steps": 4, "save_every": 2}
    )
    whole = runner.whole(raw, tmp_path / "whole")
    short = {**raw, "training": {**raw["training"], "steps": 2}}
    runner.whole(short, tmp_path / "broken")
    again = runner.resume(tmp_path / "broken", training={"steps": 4})
    runner.go(again)
    assert without_times(tmp_path / "whole") == without_times(tmp_path / "broken")
    one, two = (
        (checkpoint.newest(run.checkpoints) / "model.safetensors").read_bytes()
        for run in (whole, again)
    )
    assert one == two
    start, end = load_file(lab.model / "model.safetensors"), load(one)
    assert any(not torch.equal(end[name], start[name].bfloat16()) for name in end)
    assert {p.dtype for p in whole.loaded.model.parameters()} == {torch.bfloat16}


def test_float16_is_not_trained(lab, runner, tmp_path):
    with pytest.raises(UserError, match=r"float16 gradients vanish.*model\.dtype=bfloat16"):
        runner.start(lab.raw(model={"dtype": "float16"}), tmp_path / "run")


def test_an_unknown_precision_is_refused(folder):
    with pytest.raises(UserError, match=r"model\.dtype must be one of float32, .* 'int8'"):
        models.load(str(folder), dtype="int8")


# ---- GGUF


def write_gguf(path):
    """A small Qwen3 as a GGUF file of float32 tensors; returns the same model of transformers."""
    config = Qwen3Config(
        vocab_size=24, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=128, max_position_embeddings=64,
        tie_word_embeddings=False, rms_norm_eps=1e-6, rope_theta=1e4, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_key_length(128)
    writer.add_value_length(128)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e4)
    tokens = [*"0123456789+-*/(),:=.", "+-"]  # with the three special ones: 24
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<pad>", "<eos>", "<unk>", *tokens])
    writer.add_token_types([3, 3, 3, *[1] * len(tokens)])
    writer.add_token_merges(["+ -"])
    writer.add_eos_token_id(1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 2)
    for name, tensor in model.state_dict().items():
        stem, _, kind = name.rpartition(".")
        writer.add_tensor(f"{names.get_name(stem)}.{kind}", tensor.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def test_a_gguf_file_is_a_model_like_any_other(lab, runner, tmp_path):
    file = tmp_path / "small.gguf"
    original = write_gguf(file)
    loaded = models.load(str(file))
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(ids).logits, original(ids).logits)
    assert loaded.tokenizer("12+-3")["input_ids"] == [4, 5, 23, 6]
    assert loaded.tokenizer.decode([3, 4, 13]) == "01+"
    assert 1 in loaded.stop_ids
    run = runner.whole(lab.raw(model={"name": str(file)}), tmp_path / "run")
    place = checkpoint.newest(run.checkpoints)
    again = models.load(str(place))
    with torch.no_grad():
        assert torch.equal(again.model(ids).logits, run.loaded.model(ids).logits)
    assert again.tokenizer("12+3")["input_ids"] == loaded.tokenizer("12+3")["input_ids"]


def test_a_gguf_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"no model file .*none\.gguf"):
        models.load(str(tmp_path / "none.gguf"))


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_gguf_file_without_its_packages_names_the_extra(package, tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: real(name) if name != package else None
    )
    with pytest.raises(UserError, match=rf"package {package}: pip install 'strop\[gguf\]'"):
        models.load(str(tmp_path / "any.gguf"))


def test_a_model_is_written_past_what_a_killed_process_left(folder, tmp_path):
    left = tmp_path / ".whole.unfinished"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    write_model(models.load(str(folder)), tmp_path / "whole")
    models.load(str(tmp_path / "whole"))
    assert not left.exists()


def test_generation_settings_survive_a_checkpoint(folder, lab, runner, tmp_path):
    edited(folder, "generation_config.json", eos_token_id=[1, 9])
    run = runner.whole(lab.raw(model={"name": str(folder)}), tmp_path / "run")
    place = checkpoint.newest(run.checkpoints)
    assert GenerationConfig.from_pretrained(place).eos_token_id == [1, 9]
    assert models.load(str(place)).stop_ids == (1, 9)


def test_generation_settings_that_transformers_refuses_to_save_are_saved(
    folder, lab, runner, tmp_path
):
    edited(folder, "generation_config.json", do_sample=False, temperature=0.6, top_p=0.9)
    run = runner.whole(lab.raw(model={"name": str(folder)}), tmp_path / "run")
    place = checkpoint.newest(run.checkpoints)
    saved = GenerationConfig.from_pretrained(place)
    assert (saved.do_sample, saved.temperature, saved.top_p) == (False, 0.6, 0.9)
    assert saved.max_new_tokens == run.world.services.limits.episode_tokens
    own = run.world.policy.model.generation_config
    assert own.to_dict() == saved.to_dict()


def test_liger_is_refused_where_it_has_no_kernels(monkeypatch):
    with pytest.raises(UserError, match="is for GPUs, the model is on cpu: leave it out"):
        models.load("tiny", use_liger_kernel=True)
    found = models.load("tiny")
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.monkey_patch", None)
    with pytest.raises(UserError, match=r"pip install 'strop\[liger\]'"):
        models._use_liger(found.model, torch.device("cuda"))
    known = SimpleNamespace(MODEL_TYPE_TO_APPLY_LIGER_FN={"llama": None})
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.monkey_patch", known)
    with pytest.raises(UserError, match="no kernels for 'qwen3' models"):
        models._use_liger(found.model, torch.device("cuda"))
