"""The ways from token losses to one number, each against a loop and the others."""

from typing import Any

import pytest
import torch
from builders import flat_batch, members_of, ragged_batch, run, tokens_of

from strop.method.part import Use, reads
from strop.parts.loss.average.average_by_constant_length import AverageByConstantLength
from strop.parts.loss.average.average_over_tokens import AverageOverTokens
from strop.parts.loss.average.average_per_prompt import AveragePerPrompt
from strop.parts.loss.average.average_per_sequence import AveragePerSequence
from strop.support.errors import UserError

TOKEN_SUM = AverageByConstantLength(1, per_rollout=False)
SEQUENCE_SUM = AverageByConstantLength(1)

ALL: tuple[Any, ...] = (
    AverageOverTokens(),
    TOKEN_SUM,
    AveragePerSequence(),
    SEQUENCE_SUM,
    AverageByConstantLength(10),
    AveragePerPrompt(),
)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (AverageOverTokens(), 14 / 8),  # (2 * 1 + 6 * 2) / 8
        (TOKEN_SUM, 14.0),
        (AveragePerSequence(), 1.5),  # (1 + 2) / 2
        (SEQUENCE_SUM, 7.0),  # (2 + 12) / 2
        (AverageByConstantLength(10), 0.7),  # 7 / 10
        (AverageByConstantLength(), 7 / 6),  # 7 / the longest answer
        (AveragePerPrompt(), 7.0),  # one prompt: (2 + 12) / 2
    ],
)
def test_worked_example(part, expected):
    # sequences with token losses (1, 1) and (2, 2, 2, 2, 2, 2)
    batch = flat_batch((2, 6))
    loss_T = torch.tensor([1.0] * 2 + [2.0] * 6, dtype=torch.float64)
    share_T = run(part, batch).value
    assert share_T.dtype == torch.float64
    assert float((share_T * loss_T).sum()) == pytest.approx(expected, rel=1e-12)


def _loop(part: Any, batch, loss_T) -> float:
    """The aggregated loss, rollout by rollout and prompt by prompt."""
    counting = batch["denominator_T"]
    sums, sizes, groups = [], [], []
    for i in range(batch.size("B")):
        rows = [t for t in tokens_of(batch, i) if counting[t]]
        if rows:
            sums.append(sum(float(loss_T[t]) for t in rows))
            sizes.append(len(rows))
            groups.append(int(batch["group_B"][i]))
    if isinstance(part, AverageOverTokens):
        return sum(sums) / sum(sizes)
    if isinstance(part, AveragePerSequence):
        return sum(s / n for s, n in zip(sums, sizes, strict=True)) / len(sums)
    if isinstance(part, AverageByConstantLength):
        return sum(sums) / (len(sums) if part.per_rollout else 1) / part.length
    per_prompt = [
        sum(s for s, g in zip(sums, groups, strict=True) if g == group) / groups.count(group)
        for group in set(groups)
    ]
    return sum(per_prompt) / len(per_prompt)


@pytest.mark.parametrize("part", ALL, ids=repr)
@pytest.mark.parametrize("seed", [0, 1])
def test_matches_slow_loop(part, seed):
    batch = ragged_batch(seed, groups=(3, 1, 4, 2))
    dropped = members_of(batch, 2)[:1]  # a rollout, and once a whole prompt
    dropped += members_of(batch, 1) if seed == 0 else []
    counting_T = batch["denominator_T"].clone()
    for i in dropped:
        counting_T[tokens_of(batch, i)] = False
    counting_T[tokens_of(batch, members_of(batch, 0)[0])[:1]] = False  # and one token
    batch = batch.set(denominator_T=counting_T)
    loss_T = torch.linspace(-1, 2, batch.size("T"), dtype=torch.float64)
    found = float((run(part, batch).value * loss_T).sum())
    assert found == pytest.approx(_loop(part, batch, loss_T), rel=1e-9)


def test_reductions():
    batch = ragged_batch(2, groups=(3, 3), lengths=(4, 4), num_turns=(1, 1), unscored=())
    share = {part: run(part, batch).value for part in ALL}
    over_tokens = share[AverageOverTokens()]
    count = float(batch["denominator_T"].sum())
    close = torch.testing.assert_close
    close(share[TOKEN_SUM], over_tokens * count)
    close(run(AverageByConstantLength(int(count), per_rollout=False), batch).value, over_tokens)
    close(share[AveragePerSequence()], over_tokens)  # equal lengths
    close(share[AveragePerPrompt()], share[SEQUENCE_SUM])  # equal groups


@pytest.mark.parametrize("part", ALL, ids=repr)
def test_no_token_gives_zero_shares(part):
    batch = flat_batch((2, 6))
    batch = batch.set(denominator_T=torch.zeros(8, dtype=torch.bool))
    assert run(part, batch).value.tolist() == [0.0] * 8


@pytest.mark.parametrize("part", ALL, ids=repr)
def test_one_token_has_the_whole_share(part):
    expected = 1 / getattr(part, "length", 1)
    assert run(part, flat_batch((1,))).value.tolist() == pytest.approx([expected])


def test_constant_length_must_come_from_somewhere():
    batch = flat_batch((2, 6))
    with pytest.raises(UserError, match="max_length"):
        AverageByConstantLength()(batch["denominator_T"], batch["rollout_T"], 2)
    with pytest.raises(UserError, match="length"):
        AverageByConstantLength(-1)


def test_the_runs_length_is_read_only_without_one_of_its_own():
    read = [{r.column for r in reads(Use(AverageByConstantLength(n)))} for n in (0, 1)]
    assert read[0] - read[1] == {"max_length"}


def test_the_sum_of_the_weights_of_a_division_by_a_constant_is_logged():
    batch = flat_batch((2, 5))
    for part, total in ((AverageByConstantLength(10), 0.35), (TOKEN_SUM, 7.0), (SEQUENCE_SUM, 3.5)):
        assert float(run(part, batch).metrics["average/total"]) == pytest.approx(total)
