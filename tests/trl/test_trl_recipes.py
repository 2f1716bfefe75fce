"""Every recipe that TRL hosts: advantages, loss and gradient equal those of strop's own trainer."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models import Lab
from torch import Tensor
from trainers import NEW, QUIET, make, prompts

from strop.batch.batch import Batch, from_padded
from strop.catalogue import catalogue
from strop.integrations.hosted import Hosted
from strop.integrations.hosting import TRL, hosted
from strop.integrations.trl import ROW
from strop.method import notation
from strop.method.algorithm import Algorithm, wanted_columns
from strop.method.chains import Chains, generators, learnable, number_of
from strop.method.services import Graded
from strop.training.learner import models
from strop.training.learner.kernel import Tally
from strop.training.learner.policy import Policy
from strop.training.learner.step_models import StepModels, refresh
from strop.training.learner.update import Learner

pytestmark = pytest.mark.filterwarnings(QUIET, "ignore:the recipe.s num_")
HOSTED = [how for entry in catalogue.recipes() if (how := hosted(entry.name, TRL)[0])]
PASSES = 2
DRAWN = ("logp_behavior_T", "logp_sampler_T")


@pytest.fixture(scope="module")
def trainer(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """With a reference, which the policy has left a little."""
    found = make(
        lab.model, tmp_path_factory.mktemp("trl"), "grpo(beta=0.1)",
        per_device_train_batch_size=4, gradient_accumulation_steps=PASSES,
        reward_weights=[0.5, 0.5],
    )  # fmt: skip
    found.create_optimizer_and_scheduler(10)
    found.state.max_steps = 10
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in found.model.parameters():
            weight += 0.02 * torch.randn_like(weight)
    found.model.train()
    return found


def theirs(trainer: Any, algorithm: Any) -> tuple[float, list[Tensor], list[dict[str, Any]]]:
    """Loss, gradients and rollouts of an update in TRL."""
    trainer.strop, trainer._strop_step = Hosted(algorithm, 0), None
    trainer._step, trainer._buffered_inputs = 0, None
    torch.manual_seed(5)
    rows = [{"prompt": prompt} for prompt in prompts(2) for _ in range(4)]
    trainer.model.zero_grad()
    loss = 0.0
    for _ in range(PASSES):
        part = trainer._compute_loss(trainer.model, trainer._prepare_inputs(rows))
        part.backward()
        loss += float(part.detach())
        trainer._step += 1
    gradients = [weight.grad.clone() for weight in trainer.model.parameters()]
    return loss, gradients, trainer._buffered_inputs


def as_batch(trainer: Any, passes: list[dict[str, Any]]) -> Batch:
    """The same rollouts as strop samples them, prompts and all, in the order in which they came."""
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", ROW)
    whole = {name: torch.cat([each[name] for each in passes]) for name in names}
    whole = {name: column[torch.argsort(whole[ROW])] for name, column in whole.items()}
    assert bool(whole["prompt_mask"].all())
    mask_BL = torch.cat([whole["prompt_mask"] * 0, whole["completion_mask"]], 1).bool()
    num = mask_BL.shape[0]
    last_B = whole["completion_mask"].sum(1, keepdim=True) - 1
    last_B = whole["completion_ids"].gather(1, last_B).squeeze(1)
    return from_padded(
        {
            "id_T": torch.cat([whole["prompt_ids"], whole["completion_ids"]], 1),
            "origin_T": (~mask_BL).long(), "version_T": torch.zeros_like(mask_BL.long()),
            "group_B": torch.arange(num) // 4, "exit_B": torch.zeros(num, dtype=torch.int64),
            "rollout_uid_B": torch.tensor([number_of(0, 1, "rollout", row) for row in range(num)]),
            "truncated_B": last_B != trainer._tokenizer.eos_token_id,
            "parent_B": torch.full((num,), -1), "fork_at_B": torch.full((num,), -1),
            "max_length": torch.tensor(NEW), "step": torch.tensor(1),
            "num_steps": torch.tensor(10),
        },
        mask_BL,
    )  # fmt: skip


@pytest.fixture(scope="module")
def loaded(trainer: Any, lab: Lab) -> tuple[Any, Any]:
    """The policy with the trainer's weights, and the reference, for strop's learner."""
    policy, reference = (models.load(str(lab.model)).model for _ in range(2))
    policy.load_state_dict(trainer.model.state_dict())
    return policy.requires_grad_(True), reference.requires_grad_(False).eval()


def ours(
    trainer: Any, algorithm: Algorithm, batch: Batch, loaded: tuple[Any, Any]
) -> tuple[Any, Batch, Any]:
    """Loss, rows and gradients of the same update by strop's learner, on the same weights."""
    policy, reference = loaded
    policy.zero_grad()
    both = StepModels(Policy(policy, 64), 1.0, Policy(reference, 64))
    now = both.columns("current", batch, ("logp_T", "entropy_T"))
    inside = batch["mask_T"]
    drawn = {name: torch.where(inside, now["logp_T"], 0) for name in DRAWN}
    batch = batch.set(**drawn, entropy_behavior_T=torch.where(inside, now["entropy_T"], 0))
    reward_BM = trainer._strop_rewards
    scored_B = ~reward_BM.isnan().all(1)
    graded = Graded(reward_BM, 0.5 * reward_BM.nansum(1), scored_B, {}, batch["group_B"] * 0)
    grading = SimpleNamespace(grade=lambda _: graded, reward_weights=(0.5, 0.5))
    services: Any = SimpleNamespace(grading=grading)
    chains = Chains(generators(0, 1), services)
    batch = chains.write("reward", algorithm.reward, batch)
    for use in algorithm.curation:
        batch = batch.keep(chains.call("curation", use, batch).value.keep_B)
    batch = refresh(batch, wanted_columns(algorithm), both)
    batch = chains.write("probes", algorithm.probes, batch)
    batch = learnable(chains.credit(algorithm.advantage, batch))
    batch = chains.select(algorithm.selection, batch)
    tally = Tally()
    chosen = batch.set(update_T=batch["mask_T"])
    if bool(chosen["gradient_T"].any()):
        learner = Learner(both, 0.0, chains.rng_of)
        learner.apply(list(algorithm.terms), chosen, 0, tally)
    gradients = [
        torch.zeros_like(weight) if weight.grad is None else weight.grad
        for weight in policy.parameters()
    ]
    return sum(map(float, tally.losses.values())), batch, gradients


@pytest.mark.parametrize("how", HOSTED)
def test_hosted_as_ours(trainer: Any, loaded: tuple[Any, Any], how: str) -> None:
    method = notation.recipe(how)
    loss, gradients, passes = theirs(trainer, method)
    algorithm = method.in_phase(1).at_step(1, 10)
    expected, batch, wanted = ours(trainer, algorithm, as_batch(trainer, passes), loaded)
    kept = trainer._strop_step.batch
    assert torch.allclose(
        kept["advantage_T"][kept["mask_T"]], batch["advantage_T"][batch["mask_T"]], atol=1e-4
    )
    assert kept["gradient_T"][kept["mask_T"]].equal(batch["gradient_T"][batch["mask_T"]])
    assert loss == pytest.approx(expected, rel=1e-4, abs=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    for found, gradient in zip(gradients, wanted, strict=True):
        assert torch.allclose(found, gradient, rtol=1e-3, atol=1e-4 * largest + 1e-7)


def test_more_than_fifty_recipes_are_compared() -> None:
    assert len(HOSTED) > 50
