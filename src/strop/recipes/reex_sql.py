"""Queries run while an answer is written, rewarded for format, text and result."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.reward.weigh_measures import WeighMeasures
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, num_rollouts=8)
def reex_sql(
    *,
    # Weight of a well-formed answer.
    format: float = 2.0,
    # Weight of the gold query's own text.
    exact_match: float = 1.0,
    # Weight of the gold query's rows.
    execution: float = 3.0,
    # Weight of the measure `entities` of an environment of yours (paper: 1); 0: left out.
    entities: float = 0.0,
    # Weight of the measure `exploration` of an environment of yours (paper: 2); 0: left out.
    exploration: float = 0.0,
    **parent: Any,
) -> Algorithm:
    """ReEx-SQL: Reasoning with Execution-Aware Reinforcement Learning for Text-to-SQL.

    arXiv 2505.12768. Code: none released. Parent: grpo. Status: partial.

    Family: turns.
    In short: runs queries while answering.
    Choose it when: a question is answered by a query, and the policy should try queries before it
    answers.
    Equation: R = 2 format + 1 exact_match + 3 execution + 1 entities + 2 exploration; grpo's A and
    loss, over the tokens that the policy wrote.
    Differs from the parent: the environment text_to_sql runs each `<intermediate_sql>` and inserts
    its `<result>`, as a turn of play_turns, and the reward is a weighted sum of what it measures.
    Differs from the paper: 1. entity match and exploration are published nowhere, so they are left
    out (weight 0) unless an environment of yours measures them; 2. the others are 0 or 1, and what
    they require is inferred; so is the mask of inserted tokens; 3. batch 64 and learning rate 2e-6
    are the run's settings: sampling.num_prompts, training.lr; 4. its tree decoding is left out.
    Try: format, exact_match, execution, max_executions of data.task_config.
    """
    every = {
        "format": format, "exact_match": exact_match, "execution": execution,
        "entities": entities, "exploration": exploration,
    }  # fmt: skip
    weights = {name: weight for name, weight in every.items() if weight}
    algorithm = grpo(**parent)
    pay = WeighMeasures(tuple(weights), tuple(weights.values()))
    return dataclasses.replace(
        algorithm, rollout=Use(PlayTurns()), reward=(*algorithm.reward, Use(pay))
    )
