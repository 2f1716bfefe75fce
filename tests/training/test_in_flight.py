"""Groups that start and end one by one: in order, within the bound, each once, also restarted."""

import dataclasses
import time

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from strop.batch.batch import Batch
from strop.data.tool_calls import read_action
from strop.parts.rollout.base import RolledOut
from strop.training.collect.here import pooled
from strop.training.collect.in_flight import as_plain
from strop.training.collect.messages import Begin, Collected, Ended, Weights
from strop.training.collect.process import CollectorLoop
from strop.training.loading import load_model
from strop.training.record import checkpoint
from strop.training.settings import config
from strop.training.setup import load_prompts, make_world

STEPS, PROMPTS, ROLLOUTS = 5, 4, 2


class Trainer:
    """The other end, which trains on a batch when the collecting process has nothing to do."""

    def __init__(self, begin, folder):
        self.begin, self.folder = begin, folder
        self.messages, self.version = [], begin.step - 1
        self.news, self.signs = self.version, 0

    def live(self):
        self.signs += 1

    def wait(self):
        batches = [message.step for message in self.messages if isinstance(message, Collected)]
        assert self.version + 1 in batches, "it waits, and there is nothing to train on"
        self.version += 1
        self.news = self.version

    def take(self):
        if self.news is None:
            return None, []
        version, self.news = self.news, None
        path = self.folder / f"weights-{version}"
        save_file({"model.norm.weight": torch.ones(32) + version / 8}, path)
        return Weights(version, str(path)), []

    def send(self, message):
        self.messages.append(message)

    def of(self, kind):
        return [message for message in self.messages if isinstance(message, kind)]


@pytest.fixture
def collect(lab, tmp_path):
    """(max_staleness, recipe, fields of Begin) -> the trainer's end, and what ran together.

    slow: turns that the engine takes before the rewards of step 1 are there. signs: signs of life
    that are given until then.
    """
    worlds = []

    def collected(max_staleness, recipe="grpo", slow=0, signs=0, **started):
        raw = lab.raw(recipe, training={"steps": STEPS, "max_staleness": max_staleness})
        raw["algorithm"] |= {
            "sampling.num_prompts": PROMPTS, "sampling.num_rollouts": ROLLOUTS,
            "rollout.max_tokens": 40,
        }  # fmt: skip
        settings = config.make(raw)
        begin = Begin(settings.model_dump(), 1, {}, max_staleness, 1, "")
        trainer = Trainer(dataclasses.replace(begin, **started), tmp_path)
        method = settings.build()
        task = load_prompts(settings.data, settings.reward, heldout=False)
        world = make_world(settings, method, load_model(settings), task, learns=False)
        worlds.append(world)
        process, seen, running = CollectorLoop(trainer, world, method), [], []
        turn = process.in_flight.tick

        def looking():
            in_flight = process.in_flight
            seen.append(dict(in_flight.sizes))
            running.append(sum(in_flight.crowd.left(*each) for each in in_flight.sizes.items()))
            turn()

        process.in_flight.tick = looking
        grader = world.services.grading.grader
        grade = grader.grade

        def grading(*given, **more):
            before, signs_before, until = len(seen), trainer.signs, time.monotonic() + 20
            while more["step"] == 1 and time.monotonic() < until:
                if len(seen) >= before + slow and trainer.signs >= signs_before + signs:
                    break
                time.sleep(0.001)
            turns[more["step"]] = len(seen) - before
            assert more["step"] > 1 or trainer.signs >= signs_before + signs
            return grade(*given, **more)

        grader.grade, turns = grading, {}
        process.go()
        assert turns.get(1, 0) >= slow
        trainer.running = running
        return trainer, seen

    yield collected
    for world in worlds:
        world.services.close()
        world.engine.close()


def prompts_of(batch):
    return [*zip(batch["uid_P"].tolist(), batch["draw_P"].tolist(), strict=True)]


def test_groups_of_the_next_step_begin_while_slow_ones_run(collect):
    trainer, seen = collect(1)
    steps = [{step for step, _ in sizes} for sizes in seen]
    assert {1, 2} in steps
    assert {3, 4} not in steps  # 4 begins when 2 is trained, and that is when nothing is to be done
    assert (
        max(sum(sizes.values()) for sizes in seen) > PROMPTS * ROLLOUTS
    )  # of some, a part is left
    batches = trainer.of(Collected)
    assert [batch.step for batch in batches] == [*range(1, STEPS + 1)]
    for found in batches:
        version_T = found.batch["version_T"][found.batch["mask_T"]]
        assert found.step - 1 - int(version_T.min()) == min(found.step - 1, 1)


def test_every_group_is_told_once_and_trained_on_in_its_step(collect):
    trainer, _ = collect(2)
    told = [(each.step, *each.group["draw"]) for each in trainer.of(Ended)]
    assert len(told) == len(set(told)) == STEPS * PROMPTS
    for found in trainer.of(Collected):
        own = [(uid, draw) for step, uid, draw, _ in told if step == found.step]
        assert sorted(own) == sorted(prompts_of(found.batch))
        # 0 where all was generated while the step before was graded, whose time it then is
        assert 0 <= found.seconds["rollout"] <= found.busy <= found.worked
    assert sum(found.seconds["rollout"] for found in trainer.of(Collected)) > 0


def test_a_step_draws_the_prompts_that_it_draws_alone(collect):
    ahead, _ = collect(2)
    alone, seen = collect(0)
    assert all(len({step for step, _ in sizes}) == 1 for sizes in seen)
    assert not alone.of(Ended)
    for one, other in zip(ahead.of(Collected), alone.of(Collected), strict=True):
        assert prompts_of(one.batch) == prompts_of(other.batch)


def test_other_steps_are_drawn_while_one_is_graded(collect):
    """By a grader that waits for that; what was graded, and is drawn later, is as ever."""
    trainer, _ = collect(2, slow=8)
    other, _ = collect(2)
    assert [each.step for each in trainer.of(Collected)] == [*range(1, STEPS + 1)]
    for one, two in zip(trainer.of(Collected), other.of(Collected), strict=True):
        assert prompts_of(one.batch) == prompts_of(two.batch)
        assert one.batch["rollout_uid_B"].equal(two.batch["rollout_uid_B"])
    first, plain = trainer.of(Collected)[0], other.of(Collected)[0]
    assert first.batch["id_T"].equal(plain.batch["id_T"])
    assert first.batch["reward_B"].equal(plain.batch["reward_B"])
    assert first.batch["reward_B"].unique().shape[0] > 1


def test_a_new_process_draws_no_group_again_that_had_ended(collect):
    before, _ = collect(2)
    second = next(each for each in before.of(Collected) if each.step == 2)
    assert set(second.drawn) >= {3}
    held: dict[int, list] = {}
    for message in before.of(Ended):
        if message.step in (3, 4):
            held.setdefault(message.step, []).append(message.group)
    lost = held[3].pop()
    after, _ = collect(2, step=3, state=second.state, drawn=second.drawn, held=held)
    told = {(each.step, *each.group["draw"]) for each in after.of(Ended)}
    assert [each for each in told if each[0] == 3] == [(3, *lost["draw"])]
    assert not [each for each in told if each[0] == 4]
    unbroken = {each.step: each for each in before.of(Collected)}
    for found in after.of(Collected):
        there = unbroken[found.step].batch
        assert prompts_of(found.batch) == prompts_of(there)
        if found.step == 4:
            assert found.batch["rollout_uid_B"].equal(there["rollout_uid_B"])
            assert found.batch["id_T"].equal(there["id_T"])
            assert found.batch["logp_behavior_T"].equal(there["logp_behavior_T"])
            assert found.batch["reward_B"].equal(there["reward_B"])


def test_what_is_logged_of_a_group_can_be_read_from_a_checkpoint(tmp_path):
    """A parsed action and numbers of numpy, which torch does not read as they are."""
    action = read_action('<tool_call>{"name": "f", "arguments": {}}</tool_call>', "hermes")
    turn = {"action": action, "measures": {"m": np.float64(0.5), "n": np.arange(2)}, "valid": True}
    logged = {"turns": {3: [turn]}, "note": {3: np.int64(7)}}
    torch.save({"groups": as_plain(logged)}, tmp_path / "trainer.pt")
    found = checkpoint.read(tmp_path)["groups"]
    assert found == {
        "turns": {3: [{**turn, "measures": {"m": 0.5, "n": [0, 1]}}]}, "note": {3: 7},
    }  # fmt: skip


def test_strategies_that_end_each_other_run_whole(collect):
    trainer, seen = collect(1, "april_partial_rollout(chunk=6, num_prompts=4)", signs=2)
    assert all(len({step for step, _ in sizes}) == 1 for sizes in seen)
    assert not trainer.of(Ended)
    assert [batch.step for batch in trainer.of(Collected)] == [*range(1, STEPS + 1)]


def test_metrics_of_pieces_are_those_of_the_whole():
    def piece(size, discarded, **metrics):
        rows = torch.zeros(size, dtype=torch.int64)
        batch = Batch(
            {
                "turn_T": torch.arange(size), "rollout_K": torch.arange(size), "group_B": rows,
                "uid_P": torch.zeros(1, dtype=torch.int64),
                "draw_P": torch.zeros(1, dtype=torch.int64),
                "mask_T": torch.ones(size, dtype=torch.bool),
            }
        )  # fmt: skip
        return RolledOut(batch, None, discarded, metrics)

    found = pooled([piece(1, 2, tried=3, share=1.0), piece(3, 0, tried=4, share=0.0, other=2.0)])
    assert found == {
        "tried": 7,
        "share": 0.25,  # (1 * 1 + 3 * 0) / 4
        "other": 2.0,
        "rollout/tokens_thrown_away": 2,
    }
    assert pooled([piece(2, 0, tried=3, share=1 / 3)]) == {"tried": 3, "share": 1 / 3}
