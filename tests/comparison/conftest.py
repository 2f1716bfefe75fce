"""One small comparison, made as a user makes it, for all tests of this folder."""

import pytest
from commands import ended
from compared import Made, words_for
from models import Lab


@pytest.fixture(scope="session")
def made(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Two methods, one seed, the start scored."""
    folder = tmp_path_factory.mktemp("made") / "comparison"
    words = words_for(lab, "grpo", "rloo training.lr=2e-3", "--seeds", "1", "--start")
    words += ["--target", "pass@1=0.9", "--band", "1,9", "--mean", "groups/frac_mixed"]
    done = ended(["compare", *words, "--out", folder], folder.parent)
    assert done.code == 0, done.err
    return Made(folder, words, done.out)
