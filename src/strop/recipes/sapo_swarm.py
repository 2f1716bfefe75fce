"""Group relative policy optimisation in several runs that share their answers."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.curation.train_on_shared_groups import TrainOnSharedGroups
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


@inherits(grpo, eps=1e-8, clip_high=0.28, aggregation="token-mean", num_prompts=8, num_rollouts=8)
def sapo_swarm(
    *,
    # Folder that all nodes can access; empty: this node is alone.
    store: str = "",
    # Name of this node in it, different from all others'.
    node: str = "",
    # Own groups of a step that are trained on.
    own: int = 4,
    # Groups of other nodes that are trained on in a step.
    foreign: int = 4,
    **parent: Any,
) -> Algorithm:
    """Sharing is Caring: Efficient LM Post-Training with Collective RL Experience Sharing.

    arXiv 2509.08721. Code: gensyn-ai/rl-swarm, gensyn-ai/genrl. Parent: grpo. Status: exact.

    Family: draws. Model: tiny-worked.
    In short: nodes share their answers.
    Choose it when: several machines each train a model on the same prompts and share no more than a
    folder; too many foreign answers hurt.
    Equation: grpo's, over `own` groups of the node and `foreign` ones of others whose outcomes
    differ by the node's own verifier; foreign answers have rho = 1 like its own.
    Differs from the parent: part of the groups are other nodes' answers; clip 0.2 and 0.28, all
    tokens weigh the same, 8 prompts of 8 answers.
    Differs once: `'sapo_swarm(store="swarm", node="one")'`, beside another node (shared/taken > 0).
    Differs from the paper: a node never waits for others: it takes what they have shared since its
    last step, and trains on more of its own groups where that is too little. Nodes share prompts by
    their row, so all are given the same data.
    Try: store, node, own and foreign (6 and 2).
    """
    if store and not node:
        raise UserError("sapo_swarm.store needs sapo_swarm.node, a name that no other node has")
    algorithm = grpo(**parent)
    if not foreign:
        return algorithm
    shared = Use(TrainOnSharedGroups(store, node, own, foreign))
    return dataclasses.replace(algorithm, curation=(shared,))
