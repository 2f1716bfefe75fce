"""An engine over a real vLLM server that it starts."""

import os

from strop.engines.open import read

PYTHON = os.environ.get("STROP_VLLM_PYTHON", "")


def served(loaded):
    """An engine with the weights of `loaded` over a server of its own, until the tests end."""
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # the other tests need the cores, too
    args = "--enforce-eager --kv-cache-memory-bytes 256M"
    settings = read({"kind": "vllm", "python": PYTHON, "args": args, "start_seconds": 900})
    found = settings.open(
        loaded.model, loaded.tokenizer, num_slots=8, context_length=loaded.context
    )
    yield found
    found.close()
    assert found.server.dead()
    assert not found.folder.path.exists()
    assert not found.server.place.exists()
