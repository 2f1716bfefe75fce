"""Thousands of wrong options, notations and configuration files: an algorithm, or one UserError."""

import json
import tomllib

import pytest
import tomli_w
from doors import NUMBERS, TEXTS, Outcomes, seeded, tries, wrong

from strop.catalogue import catalogue, seams
from strop.method import notation, reading, writing
from strop.method.check import check
from strop.training.settings import config
from strop.training.settings.assignments import override

SCHEDULES = (
    "linear({}, {})", "linear({})", "cosine({}, {}, {})", "warmup({}, {})", "points((({}, {}),))",
    "points({})", "decay({}, {}, {})", "cosine_restarts({}, {}, {}, {})", "constant({})",
    "constant(value={})", "linear(start={}, stop={})", "points()", "warmup(*[{}])", "step({})",
    "cosine_restarts(period={}, warmup={})", "linear(**{{}})",
)  # fmt: skip
CHAINS = (
    "subtract_group_mean | divide_by_group_std(eps={}) | spread_evenly",
    "subtract_group_mean(leave_one_out={}) | spread_evenly",
    "spread_turns[advantage_K: return_K, advantage_T: {}] @ returns_low",
    "{}", "{} | {}", "({})", "{}({})", "subtract_group_mean[{}] | spread_evenly @ {}",
    "policy(objective=clip_both_sides(clip_high={}), average={})", "kl(objective={}, coef={})",
    "policy(objective=clip_both_sides, average=average_over_tokens, coef={})",
)  # fmt: skip


def written(rng, depth=0):
    """A value as someone may write it."""
    kind = rng.random()
    if kind < 0.3:
        number = rng.choice(NUMBERS)
        return "9" * 5000 if number == 10**400 else str(number)
    if kind < 0.5:
        return rng.choice(TEXTS)
    if kind < 0.7 and depth < 3:
        text = rng.choice(SCHEDULES)
        return text.format(*(written(rng, depth + 1) for _ in range(4)))
    if kind < 0.8 and depth < 3:
        return f"[{written(rng, depth + 1)}, {written(rng, depth + 1)}]"
    if kind < 0.85:
        return rng.choice(("-", "(", "[", "a.", "not ", "a|")) * rng.choice((50, 400, 20000)) + "1"
    return rng.choice(("0.2", "3", "'a'", "True", "None", "1e-4", "grpo", "spread_evenly", "none"))


def cut(text, rng):
    """The text with a few letters left out, doubled or replaced."""
    for _ in range(rng.choice((0, 0, 1, 3))):
        at = rng.randrange(len(text) + 1)
        text = (
            text[:at] + rng.choice(("", text[at : at + 1] * 2, rng.choice(TEXTS))) + text[at + 1 :]
        )
    return text


def call_of(rng):
    """A recipe with parameters."""
    entry = rng.choice(catalogue.recipes())
    names = [field.name for field in entry.fields] or ["x"]
    given = [f"{rng.choice(names)}={written(rng)}" for _ in range(rng.choice((1, 1, 2)))]
    return cut(f"{entry.name}({', '.join(given)})", rng)


def run_through(algorithm):
    """What a run does with an algorithm before anything happens."""
    check(algorithm)
    for each in getattr(algorithm, "algorithms", (algorithm,)):  # those of its phases
        for step in (1, 5, 100):
            each.at_step(step, 100)
        notation.compose(writing.written(each))


def test_notation():
    outcomes, rng = Outcomes(), seeded(0)
    stages = [*seams.STAGES, "loss", "bound", "advantages", "correction", ""]
    usual = notation.recipe("grpo(beta=0.1)")
    paths = [*usual.paths(), "loss.clip_high", "advantage.eps", "colour", "", ".", "terms.policy"]
    for _ in tries(600):
        text = call_of(rng)
        if (algorithm := outcomes.of(notation.recipe, text)) is not None:
            outcomes.of(run_through, algorithm)
        chain = rng.choice(CHAINS).format(written(rng), written(rng))
        stage = rng.choice(stages)
        if (algorithm := outcomes.of(reading.replace_stage, usual, stage, chain)) is not None:
            outcomes.of(run_through, algorithm)
        path, new = rng.choice(paths), written(rng)
        value = outcomes.of(reading.value, new) if rng.random() < 0.7 else wrong(rng)
        if (algorithm := outcomes.of(reading.override, usual, path, value)) is not None:
            outcomes.of(run_through, algorithm)
    outcomes.check()


def plain(value):
    """Whether TOML can hold the value."""
    try:
        tomllib.loads(tomli_w.dumps({"x": value}))
    except (TypeError, ValueError, AttributeError):
        return False
    return True


def leaves(raw, path=()):
    for key, value in raw.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def test_configurations():
    outcomes, rng = Outcomes(), seeded(1)
    base = config.make({}).complete().model_dump()
    places = [*leaves(base)]
    for _ in tries(500):
        raw = json.loads(json.dumps(base))
        for path in rng.sample(places, rng.choice((1, 1, 2))):
            section = raw
            for key in path[:-1]:
                section = section[key]
            section[path[-1]] = wrong(rng)
            if rng.random() < 0.1:
                section[rng.choice(TEXTS)] = section.pop(path[-1])
        if rng.random() < 0.1:
            raw[rng.choice([*raw])] = wrong(rng)
        if rng.random() < 0.3:
            name = rng.choice([*config.settings(), "recipe", "stages.advantage"])
            given = [f"{name}={written(rng)}"]
            raw = outcomes.of(override, config.defaults("tiny"), given)
        if raw is None or (made := outcomes.of(config.make, raw)) is None:
            continue
        if (whole := outcomes.of(made.complete)) is not None:
            text = outcomes.of(whole.to_toml)
            assert config.make(tomllib.loads(text)).complete() == whole
    outcomes.check()


def test_files(tmp_path):
    outcomes, rng = Outcomes(), seeded(2)
    text = config.make({}).complete().to_toml().encode()
    path = tmp_path / "config.toml"
    for _ in tries(160):
        damaged = bytearray(text)
        for _ in range(rng.choice((1, 2, 5))):
            at = rng.randrange(len(damaged))
            new = rng.choice(
                (b"", b"\xff", b"\0", b"[", b'"', b"=", b"\n", b"9" * 5000, b"[" * 5000)
            )
            damaged[at : at + rng.choice((0, 1, 20))] = new
        path.write_bytes(bytes(damaged))
        if (made := outcomes.of(config.load, path)) is not None:
            outcomes.of(made.complete)
    outcomes.check()


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 2000, "x = 0x" + "f" * 6000, "x = " + "9" * 6000, "a." * 3000 + "b = 1"]
)
def test_extreme_files(text, tmp_path):
    (tmp_path / "config.toml").write_text(text)
    outcomes = Outcomes()
    outcomes.of(config.load, tmp_path / "config.toml")
    assert outcomes.refused["load"] == 1
