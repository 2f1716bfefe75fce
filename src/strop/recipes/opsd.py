"""The policy is distilled from itself, with the solution in the teacher's prompt."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.probe.show_answer_to_reference import ShowAnswerToReference
from strop.recipes._inherit import inherits, refuse_unused
from strop.recipes.gkd import gkd
from strop.recipes.on_policy_distillation import on_policy_distillation

OF_DISTRIBUTIONS = ("divergence", "beta", "top_k", "top_of", "others")  # parameters of gkd


@inherits(gkd)
def opsd(
    *,
    # Column of the row that the teacher reads: the solution, or its answer, or a demonstration.
    column: str = "answer",
    # Template of the teacher's prompt, with {prompt} and {answer}; empty: one that the model can
    # read.
    words: str = "",
    # Whether only the sampled token is scored, as its advantage (the paper's cheaper form).
    sampled: bool = False,
    **parent: Any,
) -> Algorithm:
    """Self-Distilled Reasoner: On-Policy Self-Distillation for Large Language Models.

    arXiv 2601.18734. Code: siyan-zhao/OPSD @ 590ec26c. Parent: gkd. Status: partial.

    Family: rewards.
    In short: self-distillation with solutions.
    Choose it when: no better model is at hand, but rows have solutions or right answers, and the
    policy answers better when its prompt contains one.
    Equation: p_t = pi_start(. | x, y*, o), q_t = pi(. | x, o), o the answer before t; loss = mean_t
    D(p_t || q_t), gkd's; sampled: A_t = log p_t(o_t) - log q_old_t(o_t), loss = -mean_t A_t rho_t.
    y* is the row's solution; gradient through q alone; rho is clipped as in grpo, which takes
    effect from a second update on.
    Differs from the parent: the reference's prompt contains the solution, so that the reference, by
    default the initial weights, is a teacher. model.reference=FOLDER takes another.
    Differs from the paper: 1. the words around the solution are ours; 2. contributions of single
    tokens of the vocabulary are not clipped (later code does so); 3. answers are sampled at
    temperature 1 from the whole vocabulary (1.1, top_p 0.95 and top_k 20 there). The abstract, the
    authors' summary and the released code were read, the paper's text was not. For a teacher with
    the newest weights set control=renew_reference(every=1).
    Try: words, divergence ("forward", "reverse"), sampled (true), top_k (50).
    """
    shown = (Use(ShowAnswerToReference(words, column)),)
    if not sampled:
        return dataclasses.replace(gkd(**parent), probes=shown)
    refuse_unused("opsd(sampled=True)", parent, gkd, *OF_DISTRIBUTIONS)
    kept = {name: parent[name] for name in parent if name not in OF_DISTRIBUTIONS}
    return dataclasses.replace(on_policy_distillation(**kept), probes=shown)
