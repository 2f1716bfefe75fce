import itertools
import math

import pytest
import torch
from builders import answers
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeSampling, over_table, rolled_out
from short_runs import steps_from_a_shell

from strop.engines.asynchronous import asynchronous
from strop.method.part import Draw
from strop.parts.rollout import substitutes
from strop.parts.rollout.look_ahead_by_chunks import LookAheadByChunks
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.recipes.predictive_decoding import predictive_decoding
from strop.support.errors import UserError

FIELDS = ("num_candidates", "chunk_tokens", "chunks_ahead", "select_temperature")
DRAWS = (Draw(5, 3), Draw(9, 4))
# Token 0 ends. 1 comes first more often, but 2 leads on surely: 2 3 0.
FORK = {1: (0, 0.6, 0.4, 0), 2: (0, 0, 0, 1), 3: (1, 0, 0, 0)}
OPEN = {1: (0.1, 0.3, 0.3, 0.3), 2: (0.05, 0.7, 0.05, 0.2), 3: (0.2, 0.2, 0.5, 0.1)}


def looking(*values, **options):
    return LookAheadByChunks(**dict(zip(FIELDS, values, strict=False)), **options)


def rolled(part, table, context=100, **options):
    engine = TableEngine(by_last_token(table), context_length=context, **options)
    services = over_table(engine, {5: (1,), 9: (2, 1)}, answer_tokens=7, context_tokens=context)
    return rolled_out(part, DRAWS, engine, services, torch.Generator().manual_seed(3)), engine


def test_worked_example():
    """After 1: 2 3 0 has v = .4^(1/3) = .74, the best way over 1 is 1 2 3 with (.6 .4)^(1/3) = .62;
    of single tokens 1 is the likelier one."""
    (batch, _, discarded, _), engine = rolled(looking(30, 1, 2, 0.0), FORK)
    assert answers(batch) == [[2, 3, 0]] * 7
    assert answers(batch, "logp_sampler_T")[0] == pytest.approx([math.log(0.4), 0, 0])
    assert batch["logp_behavior_T"].isnan().equal(batch["mask_T"])
    assert not batch["truncated_B"].any()
    # candidates of 3, then 2, then 1 tokens; 3 tokens of an answer are kept
    assert engine.num_tokens == 7 * 30 * (3 + 2 + 1)
    assert discarded == 7 * (30 * 6 - 3)
    (batch, *_), engine = rolled(looking(30, 1, 0, 0.0, max_tokens=5), FORK)
    assert answers(batch) == [[1] * 5] * 7
    assert batch["truncated_B"].all()
    assert engine.num_tokens == 7 * 30 * 5


def slow_answers(part, context):
    """Each candidate asked afresh, its value from the table; all choices from one generator."""
    rng = torch.Generator().manual_seed(3)
    engine = TableEngine(by_last_token(OPEN), context_length=context)
    first = torch.randint(2**62, (7,), generator=rng).tolist()
    rows = [[(1,) if n < 3 else (2, 1), [], seed] for n, seed in enumerate(first)]
    going = rows
    while going:
        new = torch.randint(2**62, (len(going), part.num_candidates - 1), generator=rng).tolist()
        for row, others in zip(going, new, strict=True):
            prompt, kept, seed = row
            size = min(part.chunk_tokens * (1 + part.chunks_ahead), 7 - len(kept))
            seeds = (seed, *others)
            asked = [FakeSampling().request((*prompt, *kept), size, each) for each in seeds]
            tried = [list(each.ids) for each in asynchronous(engine).sample(asked)]
            value = []
            for tokens in tried:
                steps = itertools.pairwise([*prompt, *kept][-1:] + tokens)
                value.append(math.prod(OPEN[a][b] for a, b in steps) ** (1 / len(tokens)))
            share = torch.tensor(value, dtype=torch.float64).div(part.select_temperature).softmax(0)
            k = int(torch.multinomial(share, 1, generator=rng))
            kept += tried[k][: part.chunk_tokens]
            row[2] = seeds[k]
        going = [r for r in going if r[1][-1] and len(r[1]) < 7 and len(r[0]) + len(r[1]) < context]
    return [row[1] for row in rows]


@pytest.mark.parametrize("context", [100, 6])
@pytest.mark.parametrize("sizes", [(3, 2, 1), (4, 3, 0), (2, 5, 2)])
def test_matches_a_slow_loop_with_ends_inside_chunks_and_limits(sizes, context):
    part = looking(*sizes)
    (batch, _, discarded, _), engine = rolled(part, OPEN, context=context)
    expected = slow_answers(part, context)
    assert answers(batch) == expected
    ended = [answer[-1] == 0 for answer in expected]
    assert batch["truncated_B"].tolist() == [not end for end in ended]
    assert {True, False} == set(ended)
    assert discarded == engine.num_tokens - sum(map(len, expected))


@pytest.mark.parametrize(("chunk_tokens", "chunks_ahead"), [(1, 0), (2, 3), (3, 1), (50, 0)])
def test_equals_plain_samples_with_one_candidate(chunk_tokens, chunks_ahead):
    part = looking(1, chunk_tokens, chunks_ahead, top_k=3)
    ours, theirs = rolled(part, OPEN)[0].batch, rolled(SampleIndependently(top_k=3), OPEN)[0].batch
    for name, column in theirs.columns.items():
        assert ours[name].equal(column), name
    assert substitutes.plain(part) == SampleIndependently(top_k=3)


def test_mistakes_are_refused():
    for field in FIELDS:
        with pytest.raises(UserError, match=field):
            predictive_decoding(**{field: -1})


def test_twenty_steps_from_the_command_line(tmp_path, strop):
    lines = steps_from_a_shell(strop, tmp_path, "predictive_decoding(chunk_tokens=2)", 20)
    for line in lines:
        assert line["rollout/tokens_thrown_away"] > 8 * line["completions/mean_length"]
    reward = [line["reward"] for line in lines]
    assert sum(reward[-5:]) > sum(reward[:5]) + 0.5


def test_how_often_another_candidate_takes_over_is_logged():
    (plain, *_, told), _ = rolled(looking(1, 1, 2, 0.0), FORK)
    assert told == {"foresight/frac_switched": 0.0}
    # of three chunks of an answer the first is another's, where its own candidate began with 1
    switched = sum(answer[0] == 1 for answer in answers(plain))
    assert 0 < switched < 7
    (*_, told), _ = rolled(looking(30, 1, 2, 0.0), FORK)
    assert told == {"foresight/frac_switched": pytest.approx(switched / 21)}
