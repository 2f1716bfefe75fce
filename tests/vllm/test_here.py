"""vLLM in strop's own process: the tests of inside/ in the environment that has vLLM.

Packages that strop needs and that environment lacks come from this environment, after its own: the
versions that vLLM came with stay.
"""

import os
import subprocess
import sysconfig
from pathlib import Path

INSIDE = Path(__file__).with_name("inside")
ROOT = Path(__file__).parents[2]
RUN = """
import sys
sys.path.append(sys.argv[1])
import pytest
sys.exit(pytest.main(["-n", "0", "-o", "filterwarnings=", *sys.argv[2:]]))
"""


def test_it_draws_and_trains_in_the_environment_of_vllm():
    done = subprocess.run(
        [os.environ["STROP_VLLM_PYTHON"], "-c", RUN, sysconfig.get_path("purelib"), str(INSIDE)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        cwd=ROOT, capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    assert " passed" in done.stdout
