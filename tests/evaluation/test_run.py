"""Sampling and scoring a model on prompts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from models import Lab, without_times

import strop
from strop.api.inference import InferenceModel, open_model
from strop.catalogue import catalogue
from strop.evaluation.run import evaluate, validator
from strop.method.part import Use
from strop.parts.rollout import substitutes
from strop.parts.rollout.play_turns import PlayTurns
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.parts.rollout.sample_with_greedy import SampleWithGreedy
from strop.training.settings import config

REWARDS = '''
def even(completions, **columns):
    """1 or 0 by the number of digits."""
    return [float(sum(c.isdigit() for c in text) % 2 == 0) for text in completions]


def some(completions, answer, **columns):
    """No score for the prompts with answers 1 and 4, and for a few answers of the others."""
    return [
        None if own in "14" or sum(map(ord, text)) % 11 == 0 else float(len(text) % 2)
        for text, own in zip(completions, answer)
    ]


def none(completions, **columns):
    return [None] * len(completions)
'''


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """Opens the model with a reward, by its name; graders end with the module."""
    folder = tmp_path_factory.mktemp("lab")
    lab, opened = Lab.make(folder), {}
    (folder / "given.py").write_text(REWARDS)

    def open_with(name, temperature=1.0):
        if (name, temperature) not in opened:
            raw = lab.raw(reward="digits")
            raw["reward"] = {"functions": [f"{folder}/given.py:{name}"]}
            made = config.make(raw)
            opened[name, temperature] = InferenceModel.open(made, made.model.name, temperature)
        return opened[name, temperature]

    yield open_with
    for each in opened.values():
        each.services.close()


def run(subject, num_samples=6, ks=(1, 3), seed=0, prompts=None):
    chosen = subject.services.task.train if prompts is None else prompts
    return evaluate(
        chosen, subject.rollout, subject.engine, subject.services,
        num_samples=num_samples, ks=ks, seed=seed,
    )  # fmt: skip


def test_the_same_seed_gives_the_same_numbers(subject):
    one, two, other = run(subject("even")), run(subject("even")), run(subject("even"), seed=1)
    assert one.estimates == two.estimates
    assert torch.equal(one.batch["id_T"], two.batch["id_T"])
    assert one.estimates["mean@n"] != other.estimates["mean@n"]


def test_pass_at_1_is_the_mean_score_and_pass_at_n_is_any(subject):
    found = run(subject("even"), ks=(1, 3, 6))
    services = subject("even").services
    _, texts = services.texts.decoded(found.batch)
    score = np.array([sum(c.isdigit() for c in text) % 2 == 0 for text in texts], dtype=float)
    by_prompt = score.reshape(10, 6)
    assert found.estimates["pass@1"].value == pytest.approx(by_prompt.mean())
    assert found.estimates["mean@n"].value == pytest.approx(by_prompt.mean())
    assert found.estimates["pass@6"].value == pytest.approx(by_prompt.max(axis=1).mean())
    assert found.estimates["num_rollouts"].value == 60
    lengths = found.batch["length_B"].double()
    assert found.estimates["completions/mean_length"].value == pytest.approx(float(lengths.mean()))
    assert found.num_left_out == 0
    for estimate in found.estimates.values():
        rounding = 1e-12  # where all prompts have one value
        assert estimate.low - rounding <= estimate.value <= estimate.high + rounding


def test_a_prompt_sees_the_same_draws_whoever_else_is_evaluated(subject):
    """Its draws depend on its place alone, so the first prompts of a longer list agree."""
    train = subject("even").services.task.train
    few, all_of_them = run(subject("even"), prompts=train[:3]), run(subject("even"))
    first_T = all_of_them.batch["group_B"][all_of_them.batch["rollout_T"]] < 3
    assert torch.equal(few.batch["id_T"], all_of_them.batch["id_T"][first_T])


def test_prompts_with_too_few_scored_answers_are_left_out(subject):
    found = run(subject("some"), num_samples=6, ks=(1, 4))
    services = subject("some").services
    prompts, texts = services.texts.decoded(found.batch)
    rows = {p.prompt: p.columns["answer"] for p in services.task.train}
    scores = {}
    for prompt, text in zip(prompts, texts, strict=True):
        scored = rows[prompt] not in ("1", "4") and sum(map(ord, text)) % 11
        scores.setdefault(prompt, []).append(float(len(text) % 2) if scored else None)
    given = {p: [s for s in all_of if s is not None] for p, all_of in scores.items()}
    enough = [np.mean(s) for s in given.values() if len(s) >= 4]
    assert 0 < len(enough) < len(given)
    assert found.num_left_out == len(given) - len(enough)
    unscored = sum(s is None for all_of in scores.values() for s in all_of)
    assert found.estimates["num_unscored"].value == unscored
    any_scored = [np.mean(s) for s in given.values() if s]
    assert found.estimates["mean@n"].value == pytest.approx(np.mean(any_scored))


def test_without_any_score_there_are_no_numbers(subject):
    found = run(subject("none"))
    assert found.estimates == {}
    assert found.num_unscored == found.batch.size("B")
    some = run(subject("some"), ks=(7,))  # more than there are answers of a prompt
    assert (some.estimates, 0 < some.num_unscored < some.batch.size("B")) == ({}, True)
    assert "too few answers could be scored" in found.why_empty


def test_a_cold_sampler_repeats_itself(subject):
    cold, warm = run(subject("even", 0.02)), run(subject("even"))
    assert cold.estimates["entropy"].value < 0.2 < warm.estimates["entropy"].value


def test_validation_gives_metrics_of_its_split(subject):
    class World:
        engine, services = subject("even").engine, subject("even").services

    class Algorithm:
        rollout = subject("even").rollout

    prompts = World.services.task.validation
    found = validator(4, (1, 4), seed=0)(World, Algorithm, "validation", prompts)
    expected = run(subject("even"), num_samples=4, ks=(1, 4), prompts=prompts)
    assert found["eval/validation/pass@4"] == expected.estimates["pass@4"].value
    assert found["eval/validation/pass@4/low"] == expected.estimates["pass@4"].low
    assert all(name.startswith("eval/validation/") for name in found)
    assert all(isinstance(value, float) for value in found.values())


@pytest.mark.parametrize("entry", catalogue.parts("rollout"), ids=lambda entry: entry.name)
def test_what_a_strategy_adds_is_not_scored(entry):
    """Hints, greedy rows, branches and given answers stay out of the scores of a policy."""
    part = entry.load()()
    if entry.name in ("sample_independently", "play_turns", "run_agents"):
        return
    plain = substitutes.plain(part)
    assert isinstance(plain, PlayTurns if part.needs_environment else SampleIndependently)
    assert (plain.max_tokens, plain.temperature) == (part.max_tokens, part.temperature)


def test_an_evaluation_scores_the_asked_number_of_answers_and_no_greedy_one(subject):
    own = subject("even")
    greedy = Use(SampleWithGreedy(max_tokens=6))
    found = evaluate(
        own.services.task.train[:2], greedy, own.engine, own.services,
        num_samples=4, ks=(1,), seed=0,
    )  # fmt: skip
    assert found.estimates["num_rollouts"].value == 8
    assert "stage_B" not in found.batch


@pytest.mark.parametrize("temperature", [0.6, "linear(1.4, 0.6)"])
def test_a_checkpoint_is_scored_as_its_run_validates(temperature, lab, runner, tmp_path):
    cuts = {"rollout.temperature": temperature, "rollout.top_p": 0.9, "rollout.min_p": 0.01}
    raw = lab.raw(reward="digits", data={"validation_size": 4, "heldout_size": 4})
    raw["algorithm"] |= cuts
    raw["evaluation"] |= {"every": 3, "num_samples": 4}
    runner.whole(raw, tmp_path / "run")
    last = without_times(tmp_path / "run")[-1]
    options = {"split": "validation", "samples": 4, "k": (1, 4), "trust_files": True}
    found = strop.evaluate(tmp_path / "run", **options)
    for name in ("mean@4", "pass@1", "pass@4", "entropy", "completions/mean_length"):
        assert found[name] == last[f"eval/validation/{name.replace('mean@4', 'mean@n')}"], name
    for other in ({"temperature": 1.0}, {"rollout_top_p": 1.0, "rollout_min_p": 0.0}):
        assert strop.evaluate(tmp_path / "run", **options, **other)["entropy"] != found["entropy"]
    with open_model(str(tmp_path / "run"), temperature=1.2, trust=True) as subject:
        rollout = subject.rollout.part
    assert (rollout.temperature, rollout.top_p, rollout.min_p) == (1.2, 0.9, 0.01)


def test_a_checkpoint_is_scored_as_its_phase_samples(lab, runner, tmp_path):
    raw = lab.raw(training={"steps": 3, "save_every": 1})
    raw["recipe"] = "until(2, grpo) @ cool | grpo @ hot"
    raw["algorithm"] |= {f"phases.{name}.rollout.temperature": t
                         for name, t in (("cool", 0.3), ("hot", 1.5))}  # fmt: skip
    runner.whole(raw, tmp_path / "run")

    def opened(step, **options):
        with open_model(str(tmp_path / "run"), step, trust=True, **options) as subject:
            return subject.rollout.part

    assert [opened(step).temperature for step in (1, 2, 3)] == [0.3, 1.5, 1.5]
    assert opened(0, start=True).temperature == 0.3
    own = opened(1, assignments=["rollout.top_p=0.5"])
    assert (own.temperature, own.top_p) == (0.3, 0.5)
    own = opened(1, assignments=["phases.cool.rollout.top_p=0.5", "phases.hot.rollout.top_p=0.7"])
    assert (own.temperature, own.top_p) == (0.3, 0.5)


def test_an_engine_is_closed_though_the_services_are_interrupted():
    closed = []

    def interrupted():
        raise KeyboardInterrupt

    engine = SimpleNamespace(close=lambda: closed.append("engine"))
    services = SimpleNamespace(close=interrupted)
    with pytest.raises(KeyboardInterrupt), InferenceModel(None, engine, services, None, False):
        pass
    assert closed == ["engine"]
