"""Peak memory of short training runs, compared with the estimate of `strop doctor --model`.

    python benchmarks/doctor_memory.py [--setting 'float32;adapters'] [--pieces]

`strop train` trains every setting for two steps in a fresh process, on a random Qwen3 model that is
saved to a temporary folder first (`tiny` is the shipped one). The measurement is the process's peak
resident memory (VmHWM of /proc/self/status, so Linux only), minus that of an idle Python that has
imported torch and the classes of transformers. Reward functions run in a process of their own and
are not included. The estimate is the larger of the finding's two peaks, read from
`strop doctor --json` with the same options, and must be within a quarter of the measurement. On a
GPU the estimate is that of the GPU's memory, which this does not measure.
"""

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_line import some_of
from processes import output_of, status

MIB = 2**20
PEAKS = ("generating_gib", "updating_gib")
WITHIN = 0.25  # largest distance of estimate / measured from 1
REWARD = '''
def even(completions, **columns):
    """Share of even characters: it differs between answers, as a reward has to."""
    return [sum(ord(c) % 2 == 0 for c in text) / max(len(text), 1) for text in completions]
'''


@dataclass(frozen=True)
class Shape:
    """A random Qwen3 model."""

    vocabulary: int = 32768
    hidden: int = 512
    intermediate: int = 1536
    layers: int = 10
    heads: int = 8
    kv_heads: int = 4
    head_size: int = 64


@dataclass(frozen=True)
class Setting:
    """A model and the options of its run; no shape: the shipped model and its own task."""

    options: tuple[str, ...] = ()
    shape: Shape | None = Shape()


WIDE = ("training.token_budget=1024",)
SETTINGS = {
    "tiny": Setting(shape=None),
    "float32": Setting(),
    "bfloat16": Setting(("model.dtype=bfloat16",)),
    "adapters": Setting(("model.lora_rank=16",)),
    "bfloat16 and adapters": Setting(("model.dtype=bfloat16", "model.lora_rank=16")),
    "gradient checkpointing": Setting(("model.gradient_checkpointing=true",)),
    "reference": Setting(('recipe="grpo(beta=0.04)"',)),
    "wide pass": Setting(WIDE),
    "wide pass, gradient checkpointing": Setting((*WIDE, "model.gradient_checkpointing=true")),
    "long answers": Setting(
        ("rollout.max_tokens=248", "sampling.num_rollouts=16", "training.token_budget=2048"),
        Shape(vocabulary=1024, hidden=128, intermediate=256, layers=12, heads=4, kv_heads=4),
    ),
    "large vocabulary": Setting(
        ("sampling.num_rollouts=16", "rollout.max_tokens=16"),
        Shape(vocabulary=151936, hidden=256, intermediate=768, layers=8, heads=4, kv_heads=2),
    ),
}  # fmt: skip
COMMON = (
    "rollout.max_tokens=56", "sampling.num_prompts=4", "sampling.num_rollouts=4",
    "training.token_budget=512", "training.lr=1e-6", "training.save_every=0",
    "evaluation.every=0",
)  # fmt: skip
NUM_PROMPTS, PROMPT_TOKENS = 32, 8


def config_of(shape: Shape) -> Any:
    """The model's configuration."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden,
        intermediate_size=shape.intermediate, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size, max_position_embeddings=2048, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip


def build(shape: Shape, folder: Path, prompt_tokens: int = PROMPT_TOKENS) -> None:
    """Write a random model, its tokenizer of one token a word, prompts and a reward."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    words = ["<pad>", "<eos>", *(f"w{i}" for i in range(shape.vocabulary - 2))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>"
    ).save_pretrained(folder)
    Qwen3ForCausalLM(config_of(shape)).save_pretrained(folder)
    rng = random.Random(0)
    rows = [" ".join(rng.choices(words[2:], k=prompt_tokens)) for _ in range(NUM_PROMPTS)]
    lines = "".join(json.dumps({"prompt": row}) + "\n" for row in rows)
    (folder / "prompts.jsonl").write_text(lines, encoding="utf-8")
    (folder / "rewards.py").write_text(REWARD, encoding="utf-8")


def words_of(setting: Setting, folder: Path) -> list[str]:
    """The arguments of both `strop train` and `strop doctor`."""
    if setting.shape is None:
        return ["--model", "tiny", *setting.options]
    files = ["--data", str(folder / "prompts.jsonl"), "--reward", f"{folder}/rewards.py:even"]
    return ["--model", str(folder), *files, *COMMON, *setting.options]


def worker(words: list[str]) -> None:
    """Run a command of strop in this process, or stay idle if `words` is empty; print the peak."""
    import torch  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM  # noqa: F401

    if words:
        from strop.cli.main import main as strop

        sys.argv = ["strop", *words]
        with contextlib.redirect_stdout(sys.stderr):
            try:
                strop()
            except SystemExit as done:
                if done.code:
                    raise
    print(status("VmHWM"))


def fresh(*words: str) -> str:
    """The last line that a fresh process of this file prints."""
    return output_of(__file__, *words, HF_HUB_OFFLINE="1").strip().splitlines()[-1]


def estimated(words: list[str]) -> tuple[float, dict[str, Any]]:
    """Bytes that `strop doctor` estimates at the peak, and the estimate's pieces."""
    command = [sys.executable, "-m", "strop", "doctor", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"doctor failed:\n{done.stderr[-3000:]}")
    report = json.loads(done.stdout)
    finding = next(f for f in report["findings"] if "generating_gib" in f["numbers"])
    peaks = [finding["numbers"][name] for name in PEAKS]
    return max(peaks) * 2**30, {**report["model"]["bytes"], **dict(zip(PEAKS, peaks, strict=True))}


def main() -> None:
    """Print one line per setting; exit code 1 if an estimate is too far off."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--setting", type=some_of(SETTINGS, ";"), default=";".join(SETTINGS),
                        help="names, joined by ;")  # fmt: skip
    parser.add_argument("--pieces", action="store_true", help="also print the estimate's pieces")
    parser.add_argument("--worker", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        worker(options.worker)
        return
    idle = int(fresh("--worker"))
    print(f"idle process: {idle / MIB:.0f} MiB")
    print("| setting | measured, MiB | estimate, MiB | estimate / measured |")
    print("| --- | --- | --- | --- |")
    far = []
    for name in options.setting:
        setting = SETTINGS[name]
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            if setting.shape is not None:
                build(setting.shape, folder)
            words = words_of(setting, folder)
            expected, pieces = estimated(words)
            out = ["training.steps=2", "--quiet", "--out", str(folder / "run")]
            peak = int(fresh("--worker", "train", *words, *out)) - idle
        ratio = expected / peak
        print(f"| {name} | {peak / MIB:.0f} | {expected / MIB:.0f} | {ratio:.2f} |", flush=True)
        if options.pieces:
            print(json.dumps(pieces))
        if abs(ratio - 1) > WITHIN:
            far.append(name)
    if far:
        raise SystemExit(f"off by more than {WITHIN:.0%}: {', '.join(far)}")


if __name__ == "__main__":
    main()
