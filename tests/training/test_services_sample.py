import pytest
import torch
from models import Lab
from runs import Runner

from strop.engines.asynchronous import asynchronous
from strop.support.errors import UserError
from strop.tracking.metrics_file import read_metrics


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab.make(tmp_path_factory.mktemp("lab"))


def test_requests_of_parts_run_on_the_rollouts_engine_and_are_counted(lab, tmp_path):
    runner = Runner()
    run = runner.start(lab.raw("spo_chain"), tmp_path / "run")
    services = run.world.services
    run.world.act(run.algorithm.with_knobs({"rollout.sample_independently.temperature": 0.7}))
    requests = [services.sampling.request((4, 5, 6), 5, seed) for seed in range(6)]
    assert all(r.temperature == 0.7 and r.stop_ids == services.sampling.stop_ids for r in requests)
    assert services.sampling.request((4,), 5, 0, temperature=0.1).temperature == 0.1
    services.begin_step(1)
    assert services.metrics() == {}
    found = services.sampling.sample(requests)
    tokens = sum(len(event.ids) for answer in found for event in answer.events)
    assert [answer.request for answer in found] == requests
    told = services.metrics()
    assert told.pop("services/tokens_sampled") == tokens
    assert told["perf/decode/rows"] == tokens  # one of each row and step
    assert all(name.startswith("perf/") for name in told)
    assert not asynchronous(run.world.engine).busy()
    table = services.scoring.embeddings()
    assert table.shape == (run.world.engine.vocab_size, 32)
    assert not table.requires_grad
    services.begin_step(2)
    assert services.metrics() == {}
    run.close()


def test_a_run_logs_what_its_probes_cost(lab, tmp_path):
    runner = Runner()
    runner.whole(lab.raw("spo_chain", reward="even"), tmp_path / "run")
    spent = [line["services/tokens_sampled"] for line in read_metrics(tmp_path / "run")]
    # 8 answers of up to 6 tokens, cut at every 5th unlikely token, 9 continuations of up to 6
    assert all(9 <= tokens <= 8 * 2 * 9 * 6 for tokens in spent)
    assert torch.tensor(spent).unique().numel() > 1


OWN = '''
from dataclasses import dataclass
from typing import ClassVar

from strop.parts.rollout.base import COLUMNS, assemble
from strop.parts.rollout.base import SamplingFields


@dataclass(frozen=True)
class KeepShorter(SamplingFields):
    """Of two candidates the shorter one is the rollout."""

    kind: ClassVar[str] = "rollout"
    writes: ClassVar[tuple[str, ...]] = COLUMNS

    async def __call__(self, draws, engine, texts, sampling, rng):
        pairs = [self.requests(draws, texts, sampling, rng) for _ in range(2)]
        halves = [await engine.generate_all(requests) for requests in pairs]
        taken = [a if len(a.ids) <= len(b.ids) else b for a, b in zip(*halves)]
        return assemble(draws, taken), None


@dataclass(frozen=True)
class Bare:
    kind: ClassVar[str] = "rollout"
    writes: ClassVar[tuple[str, ...]] = COLUMNS

    async def __call__(self, draws, engine, texts):
        raise AssertionError
'''


def test_candidates_that_a_strategy_throws_away_are_a_cost_of_the_step(lab, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN, encoding="utf-8")
    raw = lab.raw("grpo", reward="even", stages={"rollout": f'"{own}:KeepShorter"'})
    Runner().whole(raw, tmp_path / "run")
    lines = [line for line in read_metrics(tmp_path / "run") if line["step"]]
    for line in lines:  # the other candidate is at least as long as the one that was taken
        kept = line["completions/mean_length"] * line["num_rollouts"]
        assert line["rollout/tokens_thrown_away"] >= kept > 0
    Runner().whole(lab.raw("grpo", reward="even"), tmp_path / "plain")
    assert not any(
        "rollout/tokens_thrown_away" in line for line in read_metrics(tmp_path / "plain")
    )
    bare = lab.raw("grpo", reward="even", stages={"rollout": f'"{own}:Bare"'})
    message = r"derive its class from strop\.parts\.rollout\.base\.SamplingFields"
    with pytest.raises(UserError, match=message):
        Runner().start(bare, tmp_path / "bare")
