import pytest
import torch
from models import Lab
from runs import Runner

from strop.training.record import read_metrics


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
    assert services.metrics() == {"services/tokens_sampled": float(tokens)}
    assert not run.world.engine.busy()
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
