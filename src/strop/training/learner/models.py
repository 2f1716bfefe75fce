"""Loads a Hugging Face causal model and its tokenizer, and takes the model apart at its head."""

import contextlib
import copy
import importlib.util
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from jinja2 import TemplateError
from torch import nn

from strop.assets import SHIPPED, model_folder
from strop.head.head import text_config
from strop.support import adapted, hub, linear
from strop.support.errors import UserError, needs_extra
from strop.support.files import json_of, text_of
from strop.support.folder_hints import model_inside
from strop.support.model_files import GENERATION, save_model
from strop.support.positions import context_of
from strop.training.learner import adapters
from strop.training.learner.adapters import Lora
from strop.training.learner.policy import Policy

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
          "float64": torch.float64}  # fmt: skip
JITTER = ("jitter_noise", "input_jitter_noise", "moe_jitter_eps")  # noise that models add
LONGEST_REASON = 300  # characters of a library's message
# transformers patches torch while it loads a model, which a second thread must not see.
_ONE_THREAD = threading.Lock()


@dataclass(frozen=True)
class Loaded:
    """A model with its tokenizer and where it came from.

    adapter: the PeftModel around `model` when only low-rank adapters are trained. names: those of
    the adapters, where there are several.
    """

    model: Any
    tokenizer: Any
    source: str
    adapter: Any = None
    names: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The dtype and device of the weights, for display."""
        return f"{str(self.model.dtype).removeprefix('torch.')}, {self.model.device}"

    @property
    def attention(self) -> str | None:
        """The attention implementation of transformers; None where the model names none."""
        found = getattr(self.model.config, "_attn_implementation", None)
        return found if isinstance(found, str) else None

    @property
    def context(self) -> int:
        """Most tokens of a sequence, prompt and answer together."""
        return context_of(text_config(self.model)) or 2**20

    @property
    def generation(self) -> Any:
        """The model's generation settings; None where it has none."""
        return getattr(self.model, "generation_config", None)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer, in rising order.

        Those of the tokenizer, of the model's generation settings (which may list several), and
        those with which the chat template ends an assistant's turn.
        """
        given = (getattr(self.generation, "eos_token_id", None), self.tokenizer.eos_token_id)
        found = set(_turn_ends(self.tokenizer))
        for ids in given:
            found |= {ids} if isinstance(ids, int) else set(ids or ())
        return tuple(sorted(id for id in found if 0 <= id < text_config(self.model).vocab_size))

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Returns the token that is appended to a given answer; empty when no token ends answers.

        It is that of the chat template's assistant, else the tokenizer's own.
        """
        ends = (*_turn_ends(self.tokenizer)[-1:], self.tokenizer.eos_token_id)
        return tuple(id for id in ends if id in self.stop_ids)[:1]

    def save(self, folder: Path) -> None:
        """Write weights (or adapters alone) and tokenizer in Hugging Face's (or PEFT's) layout."""
        if self.adapter is None:
            save_model(self.model, folder, safe_serialization=True)
        else:
            adapters.save(self.adapter, folder, (*self.names, *self.snapshots))
            if self.generation is not None:
                self.generation.to_json_file(folder / GENERATION)
        self.tokenizer.save_pretrained(folder)

    @property
    def snapshots(self) -> tuple[str, ...]:
        """The adapters that are copies of earlier states of trained ones."""
        routes = adapted.routes_of(self.model)
        return () if routes is None else tuple(filter(adapters.is_snapshot, routes.known))

    def num_bytes(self) -> int:
        """Bytes of the weights that `save` writes."""
        of = self.model if self.adapter is None else self.adapter
        saved = [p for p in of.parameters() if self.adapter is None or p.requires_grad]
        return sum(p.numel() * p.element_size() for p in saved)

    def load_weights(self, folder: Path) -> None:
        """Load the weights that `save` wrote. Raises UserError when they do not fit."""
        if self.adapter is not None:
            adapters.load_weights(self.adapter, folder, self.names)
        else:
            load_weights(self.model, folder)

    def without_adapter(self) -> AbstractContextManager[object]:
        """Disables the adapters inside, so that the model is the base model."""
        routes = adapted.routes_of(self.model)
        return self.adapter.disable_adapter() if routes is None else routes.under(adapted.BASE)

    def merged(self) -> "Loaded":
        """Merge the adapters into the weights; this object becomes invalid.

        Raises UserError where there are several.
        """
        if self.adapter is None:
            return self
        if self.names:
            raise UserError(
                f"{self.source} with one of several adapters is one model: give the folder of "
                f"{' or '.join(self.names)} in a checkpoint of the run"
            )
        return Loaded(adapters.merge(self.adapter), self.tokenizer, self.source)


class Remote(Loaded):
    """A local stand-in for a model that a service holds and trains."""

    def policy(self, training: Any) -> Policy:
        """The policy, with its optimiser. training: the run's settings of training."""
        raise NotImplementedError

    def frozen(self) -> Policy:
        """The model without the training, for reference terms."""
        raise NotImplementedError


def _turn_ends(tokenizer: Any) -> list[int]:
    """The special tokens at the end of an assistant's message, by the chat template."""
    if not getattr(tokenizer, "chat_template", None):
        return []
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    try:
        text = tokenizer.apply_chat_template(turn, tokenize=False)
    except TemplateError:  # the template refuses this chat; the run checks its own prompts later
        return []
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    special -= {tokenizer.unk_token_id, tokenizer.bos_token_id}
    found: list[int] = []
    for id in reversed(tokenizer(text, add_special_tokens=False)["input_ids"]):
        if id in special:
            found.append(id)
        elif tokenizer.decode([id]).strip():
            break
    return found


def model_path(name: str) -> str:
    """The folder of a model that ships with strop (`tiny`), else the name itself."""
    return str(model_folder(name)) if name in SHIPPED else name


def load(name: str, *, dtype: str = "float32", attention: str = "sdpa", **options: Any) -> Loaded:
    """Load a causal model and its tokenizer from a folder, a GGUF file or a name on the hub;
    options: as in `ready`.

    Raises UserError when the model or tokenizer cannot be loaded or the dtype is unknown.
    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    if dtype not in DTYPES:
        raise UserError(f"model.dtype must be one of {', '.join(DTYPES)}, it is {dtype!r}")
    model, tokenizer = _pretrained(name, DTYPES[dtype], attention)
    return ready(Loaded(model, tokenizer, name), **options)


def ready(
    found: Loaded,
    *,
    device: str = "cpu",
    gradient_checkpointing: bool = False,
    chat_template: str = "",
    lora: Lora | None = None,
    adapter: str = "",
    names: tuple[str, ...] = (),
    frozen: Mapping[str, Path] = MappingProxyType({}),
    onednn: bool = True,
    use_liger_kernel: bool = False,
    seed: int = 0,
) -> Loaded:
    """Prepare a model in memory for training in place. Raises UserError.

    lora: new adapters, initialised from `seed`; adapter: a folder of saved ones. names: those of
    several adapters; frozen: folders of further adapters that are not trained, by name.
    onednn: on a CPU float32 linear layers use oneDNN. use_liger_kernel: on a GPU the layers' norms,
    rotary embeddings and gates use Liger's kernels.
    Dropout is switched off, and what else is drawn at random in training: sampler and trainer must
    agree on every log-probability.
    """
    model, tokenizer = found.model, found.tokenizer
    if chat_template:
        tokenizer = copy.copy(tokenizer)  # one that was given keeps its own template
        tokenizer.chat_template = text_of(Path(chat_template), "model.chat_template:")
    wrapped = None
    if adapter:
        wrapped = adapters.read(model, Path(adapter), names)
        if (Path(adapter) / GENERATION).is_file():  # with its run's limit of tokens
            from transformers import GenerationConfig

            with _reading(f"cannot read {adapter}/{GENERATION}"):
                model.generation_config = GenerationConfig.from_pretrained(adapter)
    elif lora is not None:
        wrapped = adapters.add(model, lora, seed, names)
    for name, folder in frozen.items():
        adapters.add_frozen(wrapped, name, folder)
    _switch_noise_off(model)
    if model.dtype == torch.float64:  # which the faster ways through a mixture of experts lack
        model.set_experts_implementation("eager")
    model.to(device).eval()
    if onednn:
        linear.use_in(model)
    if use_liger_kernel:
        _use_liger(model, torch.device(device))
    linear.use_norms(model)
    if gradient_checkpointing:
        newer = getattr(model, "activation_checkpointing_enable", None)
        (newer or model.gradient_checkpointing_enable)({"use_reentrant": False})
        model.train()
    return Loaded(model, tokenizer, found.source, wrapped, names)


def _switch_noise_off(model: nn.Module) -> None:
    """Set every chance of dropout in the model to 0, of layers too, and the noise before routers.

    Models keep them under names of their own. (`router_jitter_noise` is a threshold, also outside
    training.)
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in [*vars(module).items()]:
            if isinstance(value, float) and ("drop" in name or name in JITTER):
                setattr(module, name, 0.0)


def _use_liger(model: Any, device: torch.device) -> None:
    """Put Liger's kernels into the layers of a model. Raises UserError.

    The head stays as it is: strop's own requests adjoints in the middle of its pass.
    """
    name = "model.use_liger_kernel"
    if device.type != "cuda":
        raise UserError(f"{name} is for GPUs, the model is on {device}: leave it out")
    with needs_extra(f"{name} needs Liger", "liger"):
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as KNOWN
    from transformers.integrations.liger import apply_liger_kernel

    kind = model.config.model_type
    if kind not in KNOWN:
        raise UserError(f"Liger has no kernels for {kind!r} models: leave {name} out")
    heads = {"cross_entropy": False, "fused_linear_cross_entropy": False}
    apply_liger_kernel(model, {"rope": True, "rms_norm": True, "swiglu": True, **heads})


def skeleton(name: str) -> Any:
    """The model without its weights, on the meta device. Raises UserError."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    path = model_path(name)
    if path.endswith(".gguf"):
        raise UserError(f"{name} can only be read as a whole: give a model folder or name")
    where = _where(name, path)
    with _reading(f"cannot read the model {name!r}"):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, **where)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        with contextlib.suppress(OSError):  # a model may have none
            model.generation_config = GenerationConfig.from_pretrained(path, **where)
    return model


def tokenizer_of(name: str, chat_template: str = "") -> Any:
    """The model's tokenizer with the run's chat template. Raises UserError."""
    from transformers import AutoTokenizer

    path = model_path(name)
    where = _where(name, path)
    with _reading(f"no tokenizer for the model {name!r}"):
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False, **where)
    if chat_template:
        tokenizer.chat_template = text_of(Path(chat_template), "model.chat_template:")
    return _without_length_warning(tokenizer)


def _without_length_warning(tokenizer: Any) -> Any:
    """The tokenizer, silent about texts beyond the context: strop refuses them itself."""
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def _pretrained(name: str, dtype: torch.dtype, attention: str) -> tuple[Any, Any]:
    """Model and tokenizer as transformers loads them. Raises UserError."""
    import transformers

    path = model_path(name)
    place: str = path
    file, more = {}, {}
    if path.endswith(".gguf"):
        where = _check_gguf(path)
        place, file = os.path.dirname(path) or ".", {"gguf_file": os.path.basename(path)}
        if unpack := getattr(transformers, "GgufConfig", None):  # else it always unpacks
            more = {"quantization_config": unpack(dequantize=True)}
    else:
        where = _where(name, path)
    with _reading(f"cannot load the model {name!r}"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            place, trust_remote_code=False, **file, **where
        )
        model = _whole(place, dtype=dtype, attn_implementation=attention, **file, **more, **where)
    model.name_or_path = path
    return model, _without_length_warning(tokenizer)


def _whole(place: str | Path, **options: Any) -> Any:
    """The causal model of a folder or name, every tensor from its files and no code from there.

    Raises ValueError for missing or surplus tensors: transformers would draw missing ones at random
    and ignore surplus ones.
    """
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        place, output_loading_info=True, trust_remote_code=False, **options
    )
    wrong = {"lack": report["missing_keys"], "have too much": report["unexpected_keys"]}
    for what, names in wrong.items():
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ValueError(f"its weights {what}: {', '.join(sorted(names)[:3])}{more}")
    return model


@contextlib.contextmanager
def _reading(failed: str) -> Iterator[None]:
    """Inside, one thread reads a model's files; whatever a library raises becomes a UserError.

    For damaged files transformers and the libraries below it raise errors of any type.
    """
    with _ONE_THREAD:
        try:
            yield
        except Exception as error:
            raise UserError(f"{failed}: {_why(error)}") from error


def _why(error: Exception) -> str:
    """The beginning of a library's message, in one line, with its type where it needs one."""
    text = " ".join(str(error).split())
    if "trust_remote_code" in text:
        return "it needs code that lies beside its weights, and strop runs no such code"
    if 'attn_implementation="eager"' in text:  # what transformers advises
        kind = text.partition(" does not support")[0]
        return f"{kind} has no such attention as asked for: set model.attention=eager"
    text = text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]} ..."
    plain = isinstance(error, (OSError, ValueError, RuntimeError)) and text
    return text if plain else f"{type(error).__name__}: {text}".rstrip(": ")


def _check_gguf(path: str) -> dict[str, bool]:
    """Like `_where`, for a GGUF file. Also raises UserError when GGUF files cannot be read."""
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise UserError(
                f"reading {path} needs the package {package}: pip install 'strop[gguf]'"
            )
    on_hub = not path.startswith((".", "/", "~")) and path.count("/") == 2
    if Path(path).is_file():
        return {}
    if not on_hub:
        raise UserError(f"no model file {path}")
    return {"local_files_only": hub.only_cached(*path.rsplit("/", 1))}


def _where(name: str, path: str) -> dict[str, bool]:
    """Arguments with which transformers finds a model. Raises UserError when there is none."""
    folder = Path(path)
    looks_local = folder.exists() or path.startswith((".", "/", "~"))
    if looks_local and adapters.is_adapter(folder):
        raise UserError(
            f"{name} is an adapter, not a whole model: merge it first with strop export {name} "
            "FOLDER"
        )
    if looks_local and not (folder / "config.json").is_file():
        why = f"it is no folder, seen from {Path.cwd()}; give a model's"
        if folder.is_dir():
            why = f"the folder has no config.json; give a model's{model_inside(folder)}"
        raise UserError(f"no model in {name}: {why}")
    return {} if looks_local else {"local_files_only": hub.only_cached(name)}


def check_same_architecture(folder: Path, model: nn.Module) -> None:
    """Raise UserError when the checkpoint in `folder` is of another architecture than `model`."""
    try:
        saved = dict(json_of((folder / "config.json").read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"the checkpoint {folder} has no readable config.json: {error}") from error
    ours = model.config.to_dict()  # type: ignore[union-attr, operator]
    for key in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size"):
        if key in saved and key in ours and saved[key] != ours[key]:
            raise UserError(
                f"the checkpoint {folder} has {key} {saved[key]}, the model has {ours[key]}: "
                "give the model that the run was started with"
            )


def load_weights(model: Any, folder: Path) -> None:
    """Put the weights of the checkpoint in `folder` into `model`.

    Raises UserError when the checkpoint is of another architecture or cannot be read.
    """
    check_same_architecture(folder, model)
    with _reading(f"the weights in {folder} cannot be loaded"):
        saved = _whole(folder, dtype=model.dtype)
        model.load_state_dict(saved.state_dict())
