"""Tests with vLLM in this very process; collected if this environment has it."""

import importlib.util

spec = importlib.util.find_spec("vllm")  # the folder above this one is found too; it has no origin
collect_ignore_glob = [] if spec is not None and spec.origin else ["test_*.py"]
