import itertools
import math

import pytest
import torch
from builders import answers
from fakes.engine import TableEngine
from fakes.services import over_table, rolled_out
from short_runs import steps_from_a_shell

from strop.engines.base import CAPABILITIES, Event
from strop.method import notation
from strop.method.check import check
from strop.method.part import Draw
from strop.parts.rollout._lookahead import (
    Forks,
    Similarity,
    candidates,
    edit_distance,
    longest_common,
    suffix_match,
)
from strop.parts.rollout.fork_at_close_calls import ForkAtCloseCalls
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.recipes.latr import ETA, latr
from strop.support.errors import UserError

DRAWS = (Draw(5, 6), Draw(9, 4), Draw(7, 5))
PROMPTS = {5: (1,), 9: (2, 1), 7: (3, 3, 2)}
TOKENS, END = 7, 0


def table(seed):
    """Next tokens by the last two, some calls close; 0 ends."""
    rng = torch.Generator().manual_seed(seed)
    logits = 2.5 * torch.randn(TOKENS, TOKENS, TOKENS, generator=rng, dtype=torch.float64)
    close = torch.rand(TOKENS, TOKENS, generator=rng) < 0.6
    top = logits.topk(2, dim=-1)
    level = top.values[..., :1] - 0.2
    near = logits.scatter(2, top.indices[..., 1:], level)
    logits = torch.where(close[..., None], near, logits)
    logits[..., END] -= 1.0
    chances = logits.softmax(-1)
    return lambda tokens: chances[tuple([0, *tokens][-2:])].tolist()


def rolled(part, probabilities, draws=DRAWS, seed=3, answer_tokens=14, **options):
    engine = TableEngine(probabilities, **options)
    services = over_table(
        engine, PROMPTS, answer_tokens=answer_tokens, context_tokens=engine.context_length
    )
    rng = torch.Generator().manual_seed(seed)
    found = rolled_out(part, draws, engine, services, rng)
    assert engine.rows == {}
    return found, engine


def test_worked_example_of_forks():
    """P = [.5, .4, .05, .05]: the second token forks, .4 > .25 and .1 < .15; of [.6, .4] not."""
    for chances, expected in (((0.5, 0.4, 0.05, 0.05), [1]), ((0.6, 0.4), [])):
        top = {id: math.log(p) for id, p in enumerate(chances)}
        event = Event(0, (0,), (0.0,), 0, top=(top,))
        assert [id for _, id, _ in candidates(event, Forks(2, 0.25, 0.15))] == expected
    top = {4: math.log(0.36), 2: math.log(0.33), 3: math.log(0.31)}
    event = Event(0, (4,), (0.0,), 0, top=(top,))
    found = candidates(event, Forks(3, 0.25, 0.15))
    assert [(rank, id) for rank, id, _ in found] == [(1, 2), (2, 3)]
    assert candidates(event, Forks(2, 0.25, 0.15)) == found[:1]
    assert candidates(event, Forks(3, 0.25, 0.0)) == []


def test_worked_example_of_pruning():
    parent, rule = [10, 11, 12, 13, 14], Similarity(0.4, 1.0, 1.0)
    assert edit_distance([10, 11, 12, 13, 99], parent) == 1
    assert rule.alike([10, 11, 12, 13, 99], parent)
    assert edit_distance([10, 98, 12, 97, 99], parent) == 3
    assert not rule.alike([10, 98, 12, 97, 99], parent)
    assert edit_distance([11, 12, 13, 14, 15], parent) == 2  # shifted by one
    assert not rule.alike([11, 12, 13, 14, 15], parent)  # .4 is not below .4
    # a b c is the end of the first and stands in the second; 3 of 5 are in common and in order
    a, b = [8, 9, 1, 2, 3], [1, 2, 3, 7, 7]
    assert suffix_match(a, b) == 0.6
    assert longest_common(a, b) == 3
    assert Similarity(0.0, 0.5, 1.0).alike(a, b)
    assert not Similarity(0.0, 0.6, 1.0).alike(a, b)
    assert Similarity(0.0, 1.0, 0.5).alike(a, b)
    assert not Similarity(0.0, 1.0, 1.0).alike(parent, parent)


def slow_trees(part, probabilities, widths, most):
    """The trees by the released code's loop over steps: rows of (tokens, parent, birth, ended)."""
    trees = [[{"ids": [], "parent": None, "birth": 0, "ended": False}] for _ in widths]
    number, least, within = part.forks
    pruned = 0
    for step in range(part.tree_tokens):
        if all(row["ended"] for rows in trees for row in rows):
            break
        for (prompt, width), rows in zip(widths, trees, strict=True):
            wanted = []
            for place, row in enumerate(list(rows)):
                if row["ended"]:
                    continue
                p = probabilities((*prompt, *row["ids"]))
                ranked = sorted(range(TOKENS), key=lambda n: -p[n])[:number]
                wanted += [(rank, place, n) for rank, n in enumerate(ranked)
                           if rank and p[n] > least and p[ranked[0]] - p[n] < within]  # fmt: skip
                row["next"] = ranked[0]
            kept = sorted(sorted(wanted)[: width - len(rows)], key=lambda w: (w[1], w[0]))
            new = [{"ids": [*rows[place]["ids"], n], "parent": rows[place], "birth": step,
                    "ended": False} for _, place, n in kept]  # fmt: skip
            for row in rows:
                if not row["ended"]:
                    row["ids"] = [*row["ids"], row["next"]]
            rows += new
            gone = [
                row for row in rows for r in part.windows
                if row["parent"] is not None and step + 1 - row["birth"] == r
                and len(row["ids"]) == len(row["parent"]["ids"]) == step + 1
                and END not in row["ids"] and END not in row["parent"]["ids"]
                and edit_distance(row["ids"][-r:], row["parent"]["ids"][-r:]) / r
                < part.similarity[0]
            ]  # fmt: skip
            while more := [r for r in rows if r not in gone and r["parent"] in gone]:
                gone += more
            pruned += len(gone)
            rows[:] = [row for row in rows if not any(row is other for other in gone)]
            for row in rows:
                row["ended"] = row["ids"][-1] == END or len(row["ids"]) == most
        full = sum(w if all(r["ended"] for r in rows) else len(rows)
                   for (_, w), rows in zip(widths, trees, strict=True))  # fmt: skip
        wanted = round(sum(w for _, w in widths) * (0.98 - 0.05 * step / most))
        old = all(r["birth"] + max(part.windows) < step for rows in trees for r in rows)
        if full >= wanted and old:
            break
    return trees, pruned


@pytest.mark.parametrize(("tree_tokens", "share"), [(5, 1.0), (512, 0.5)])
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 8])  # 8: it ends once one branch less will do
def test_tree_is_that_of_a_slow_loop(seed, tree_tokens, share):
    part = ForkAtCloseCalls(
        share=share, forks=(3, 0.1, 0.25), windows=(2, 3), similarity=(0.7, 1.0, 1.0),
        tree_tokens=tree_tokens,
    )  # fmt: skip
    probabilities = table(seed)
    found, engine = rolled(part, probabilities)
    batch = found.batch
    widths = [(PROMPTS[d.uid], round(d.num_rollouts * share)) for d in DRAWS]
    trees, pruned = slow_trees(part, probabilities, widths, 14)
    texts, group = answers(batch), batch["group_B"].tolist()
    sampler = answers(batch, "logp_sampler_T")
    behavior = answers(batch, "logp_behavior_T")
    first = 0
    for number, ((prompt, width), rows) in enumerate(zip(widths, trees, strict=True)):
        assert group.count(number) == DRAWS[number].num_rollouts
        for place in range(DRAWS[number].num_rollouts):
            row = first + place
            before = rows[min(place, 99)]["ids"] if place < len(rows) else rows[0]["ids"]
            if place >= width:
                before = []  # plain
            assert texts[row][: len(before)] == before
            known = [math.log(probabilities((*prompt, *texts[row][:k]))[id])
                     for k, id in enumerate(texts[row])]  # fmt: skip
            assert sampler[row] == pytest.approx(known, abs=1e-5)
            assert all(map(math.isnan, behavior[row][: len(before)]))
            assert behavior[row][len(before) :] == pytest.approx(known[len(before) :], abs=1e-5)
            parent, at = -1, -1
            if place < width and place >= len(rows):
                parent, at = first, len(before)
            elif place < width and place:
                own = [r is rows[place]["parent"] for r in rows].index(True)
                parent, at = first + own, rows[place]["birth"]
            assert int(batch["parent_B"][row]) == parent
            assert int(batch["fork_at_B"][row]) == at
        first += DRAWS[number].num_rollouts
    assert found.metrics["lookahead/pruned"] == pruned
    assert found.metrics["lookahead/width"] == sum(map(len, trees)) / sum(w for _, w in widths)
    forced = sum(1 for rows in trees for row in rows if row["parent"] is not None)
    shared = sum(max(at, 0) for at in batch["fork_at_B"].tolist())
    assert found.metrics["rollout/tokens_shared"] == shared
    own = sum(map(len, texts)) - shared
    assert engine.num_tokens == own - forced + found.num_discarded


def test_something_forks_and_something_is_pruned():
    part = ForkAtCloseCalls(forks=(3, 0.1, 0.25), windows=(2, 3), similarity=(0.7, 1.0, 1.0))
    told = [rolled(part, table(seed))[0].metrics for seed in range(6)]
    assert sum(each["lookahead/forks"] for each in told) > 30
    assert sum(each["lookahead/pruned"] for each in told) > 10


def test_equals_plain_samples_without_a_tree():
    ours, _ = rolled(ForkAtCloseCalls(share=0.0, top_k=3), table(1))
    theirs, _ = rolled(SampleIndependently(top_k=3), table(1))
    for name, column in theirs.batch.columns.items():
        assert ours.batch[name].equal(column), name
    assert ours.metrics["lookahead/tokens"] == 0


def test_one_greedy_beginning_where_nothing_may_fork():
    found, _ = rolled(ForkAtCloseCalls(forks=(2, 1.0, 1.0), tree_tokens=3), table(2))
    texts, group = answers(found.batch), found.batch["group_B"].tolist()
    for number, draw in enumerate(DRAWS):
        own = [text for text, g in zip(texts, group, strict=True) if g == number]
        greedy = []
        while len(greedy) < 3 and END not in greedy:
            p = table(2)((*PROMPTS[draw.uid], *greedy))
            greedy.append(p.index(max(p)))
        assert all(text[: len(greedy)] == greedy for text in own)
        assert END in greedy or len({tuple(text) for text in own}) > 1


def test_without_pruning_all_forks_stay():
    part = ForkAtCloseCalls(forks=(3, 0.1, 0.25), windows=(2,), similarity=(0.0, 1.0, 1.0))
    for seed in range(3):
        found, _ = rolled(part, table(seed))
        assert found.metrics["lookahead/pruned"] == 0
        assert found.num_discarded == 0


def test_another_temperature_and_cuts_are_those_of_the_samples_alone():
    part = ForkAtCloseCalls(tree_tokens=2, temperature=0.5, top_k=2)
    (batch, *_), _ = rolled(part, table(4))
    for text, logp, plain in zip(
        *(answers(batch, name) for name in ("id_T", "logp_sampler_T", "logp_behavior_T")),
        strict=True,
    ):
        assert [math.isnan(x) for x in logp] == [n < 2 for n in range(len(text))]
        assert all(p > m - 1e-6 for p, m in itertools.islice(zip(plain, logp, strict=True), 2, 99))


@pytest.mark.parametrize(
    "limits", [{"answer_tokens": 4}, {"context_length": 7}, {"context_length": 5}]
)
def test_limits_end_branches(limits):
    part = ForkAtCloseCalls(forks=(3, 0.0, 1.0), windows=(2,), similarity=(0.0, 1.0, 1.0))
    (batch, *_), _ = rolled(part, table(5), **limits)
    for n, text in enumerate(answers(batch)):
        prompt = len(PROMPTS[int(batch["uid_P"][batch["group_B"][n]])])
        limit = min(limits.get("answer_tokens", 14), limits.get("context_length", 99) - prompt)
        assert len(text) <= limit
        assert END not in text[:-1]
        assert bool(batch["truncated_B"][n]) == (text[-1] != END)
        assert text[-1] == END or len(text) == limit


def test_composes_and_mistakes_are_refused():
    algorithm = latr(M=3, tau_abs=0.2, tau_rel=0.3, r=(2, 4), tau_ed=0.5, force_step=9)
    check(algorithm)
    part = algorithm.rollout.part
    assert (part.forks, part.windows, part.tree_tokens) == ((3, 0.2, 0.3), (2, 4), 9)
    steps = {1: 1, 9: 1, 10: 0.75, 20: 0.5, 79: 0.5, 80: 0.25, 199: 0.25, 200: 0, 500: 0}
    assert {step: ETA(step, 500) for step in steps} == steps
    for wrong in ("M=0", "tau_abs=-1", "eta=2", "r=(0,)", "force_step=0", "tau_suf=-0.1"):
        with pytest.raises(UserError, match="fork_at_close_calls"):
            notation.recipe(f"latr({wrong})")
    with pytest.raises(UserError, match="top"):
        rolled(ForkAtCloseCalls(), table(0), capabilities=CAPABILITIES - {"top"})


def test_twenty_steps_from_the_command_line(tmp_path, strop):
    method = "latr(eta=0.75, tau_abs=0.02, tau_rel=0.5, r=(2,), tau_ed=0.6, beta=0.0)"
    lines = steps_from_a_shell(strop, tmp_path, method, 20)
    assert sum(line["lookahead/forks"] for line in lines) > 20
    assert sum(line["lookahead/pruned"] for line in lines) > 0
    reward = [line["reward"] for line in lines]
    assert sum(reward[-5:]) > sum(reward[:5]) + 0.5
