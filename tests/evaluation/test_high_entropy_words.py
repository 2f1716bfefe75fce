import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strop.evaluation.high_entropy_words import high_entropy_words
from strop.support.errors import UserError


def written(folder, *steps):
    """Tokens of rollouts by step: each a text, its entropy, and whether the policy said it."""
    (folder / "tokens").mkdir()
    for step, rollouts in enumerate(steps):
        rows = [
            {"text_T": [t for t, _, _ in each], "entropy_behavior_T": [h for _, h, _ in each],
             "mask_T": [said for _, _, said in each]}
            for each in rollouts
        ]  # fmt: skip
        pq.write_table(pa.Table.from_pylist(rows), folder / f"tokens/step-{step:06d}.parquet")
    return folder


def test_worked_example(tmp_path):
    first = [("so", None, False), ("But", 0.1, True), (" x", 1.0, True), ("y", 3.0, True),
             ("\u0120but", 0.2, True), ("z", 1.0, True), ("two words", 5.0, True)]  # fmt: skip
    second = [(" but", 0.0, True), ("x", 0.6, True), ("y", 0.0, True), ("q", 9.0, True)]
    found = high_entropy_words(written(tmp_path, [first], [second]), width=2, least=1)
    # but: (1 + 3) / 2, (1 + 5) / 2, (.6 + 0) / 2, mean 5.3 / 3; x: (3 + .2) / 2, (0 + 9) / 2; y:
    # (.2 + 1) / 2, and no room in the second; z, "two words" and q have none
    assert [(each.word, each.times) for each in found] == [("x", 2), ("but", 3), ("y", 1)]
    assert [each.entropy for each in found] == pytest.approx([3.05, 5.3 / 3, 0.6])
    assert high_entropy_words(tmp_path, 1, width=2, least=2) == found[:1]
    assert [each.word for each in high_entropy_words(tmp_path, width=2, least=3)] == ["but"]
    with pytest.raises(UserError, match="lower least"):
        high_entropy_words(tmp_path)
    with pytest.raises(UserError, match="no tokens"):
        high_entropy_words(tmp_path / "tokens")


def test_words_of_a_run_are_those_that_the_recipe_counts(lab, tmp_path, runner):
    raw = lab.raw(training={"steps": 1, "inspect": 8})
    runner.go(runner.start(raw, tmp_path / "run"))
    words = " ".join(each.word for each in high_entropy_words(tmp_path / "run", width=2, least=1))
    for shown, counts in ((words, True), ("nothing", False)):
        method = {"recipe": f"ares_aepo(variant='code', w=2, words={shown!r})"}
        watcher = runner.go(runner.start(raw | method, tmp_path / f"counts_{counts}"))
        assert (watcher.seen[-1]["ares/windows_mean"] > 0) == counts
