"""Whole-suite settings: one thread per worker, no network or disk, repeatable property tests."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
# No test cuts the power, and waiting for the disk is a tenth of the suite. Tests of a disk that
# fails put their own in its place.
os.fsync = lambda _: None
settings.register_profile(
    "strop", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("strop")
