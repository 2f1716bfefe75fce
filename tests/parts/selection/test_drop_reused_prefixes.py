import torch
from builders import flat_batch, run

from strop.parts.selection.drop_reused_prefixes import DropReusedPrefixes

# Rollout 1 took two tokens of 0, 2 three of 0, 3 one of 2.
TREE = {"parent_B": [-1, 0, 0, 2], "fork_at_B": [-1, 2, 3, 1]}


def kept(part, batch):
    found = run(part, batch).value
    assert found.gradient_T.equal(found.denominator_T)
    assert found.reason == "reused_prefix"
    pieces = torch.split(found.gradient_T, batch["length_B"].tolist())
    return ["".join("-x"[token] for token in piece.tolist()) for piece in pieces]


def test_what_was_taken_over_is_not_learnt_again():
    assert kept(DropReusedPrefixes(), flat_batch((5, 4, 4, 2), **TREE)) == [
        "xxxxx", "--xx", "---x", "-x"
    ]  # fmt: skip


def test_nor_by_the_one_it_was_taken_from():
    """0 gave three of its tokens at most; 2 has itself taken more than it gave."""
    batch = flat_batch((5, 4, 4, 2), **TREE)
    assert kept(DropReusedPrefixes(in_both=True), batch) == ["---xx", "--xx", "---x", "-x"]
    deep = batch.set(fork_at_B=torch.tensor([-1, 2, 1, 4]))
    assert kept(DropReusedPrefixes(in_both=True), deep) == ["--xxx", "--xx", "----", "--"]


def test_edges():
    alone = flat_batch((2, 1), parent_B=[-1, -1], fork_at_B=[-1, -1])
    for part in (DropReusedPrefixes(), DropReusedPrefixes(in_both=True)):
        assert kept(part, alone) == ["xx", "x"]
    orphan = alone.set(fork_at_B=torch.tensor([-1, 1]))  # the other one left the batch
    assert kept(DropReusedPrefixes(in_both=True), orphan) == ["xx", "-"]
    masked = flat_batch((4,), parent_B=[-1], fork_at_B=[2])
    masked = masked.set(mask_T=torch.tensor([False, True, True, True]))
    found = run(DropReusedPrefixes(), masked).value.gradient_T
    assert found.tolist() == [False, False, False, True]
