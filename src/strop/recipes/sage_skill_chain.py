"""Chains of similar tasks in which skills from one task are available in the next."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.reward.reward_reused_skills import RewardReusedSkills
from strop.parts.rollout.answer_with_skills import AnswerWithSkills
from strop.parts.sampling.chain_similar_prompts import ChainSimilarPrompts
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=("eps", "std"), normalize_std=False)
def sage_skill_chain(
    *,
    # Tasks of a chain; 1: no chain and no skills.
    M: int = 2,
    # Column of the data that is equal in similar tasks; "": all are similar.
    scenario: str = "",
    # Bonus for a skill that helps in a second task, and whether the answer that wrote it gets it
    # too.
    bonus: float = 0.5,
    pays_author: bool = True,
    # Reward of an answer that neither defines nor calls a skill.
    missing: float = -1.0,
    # Regular expression of a skill, how it is called, and the prompt's template with the skills in
    # it.
    skill: str = AnswerWithSkills.skill,
    call: str = AnswerWithSkills.call,
    words: str = AnswerWithSkills.words,
    **parent: Any,
) -> Algorithm:
    """Reinforcement Learning for Self-Improving Agent with Skill Library (SAGE).

    arXiv 2512.17102. Code: amazon-science/SAGE, not obtained. Parent: grpo. Status: partial.

    Family: rewards.
    In short: rewards skills reused in a chain.
    Choose it when: tasks come in families, answers are programs, and functions written for one task
    should be general enough for the next.
    Equation: R = outcome + bonus for a function saved in one task and called in a later one of its
    chain, both right; -1 without code; A_i = R_i - mean over the G chains at that task.
    Differs from the parent: chains of M tasks, each row compared at its own task; that reward; no
    deviation.
    Differs from the paper: 1. the size of the bonus and who receives it were not found (0.5, both);
    2. one answer a task, no second try after an error; 3. it starts from a model that was trained
    on expert trajectories (`sft`).
    Try: scenario (a column of the data), pays_author, skill and call (other languages), bonus.
    """
    algorithm = grpo(**parent)
    if M == 1:
        return algorithm
    return dataclasses.replace(
        algorithm,
        sampling=(*algorithm.sampling, Use(ChainSimilarPrompts(scenario, M))),
        rollout=Use(AnswerWithSkills(skill=skill, call=call, words=words)),
        reward=(*algorithm.reward, Use(RewardReusedSkills(bonus, missing, pays_author))),
    )
