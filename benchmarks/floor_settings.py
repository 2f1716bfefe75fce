"""The setting in which `floor.py` trains each recipe, with the inputs that the recipe needs."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import train

from strop.environments.built_in.corridor import Corridor
from strop.environments.countdown import expressions, prompt_text, puzzles
from strop.method import notation
from strop.method.cost import needs_of
from strop.training.settings.config import defaults


@dataclass(frozen=True)
class TaskOf:
    """The measure of success at a task, how much it has to rise, and the task's source."""

    margin: float = 0.1
    measure: str = "pass@1"
    source: str = ""


TASKS = {
    "countdown": TaskOf(),
    "corridor": TaskOf(),
    "calculator": TaskOf(),
    "kernel_timing": TaskOf(),
    # Points of an episode: 1 for each action that equals the expert's, of 5 on average.
    "recordings": TaskOf(0.5, "mean@n", "strop.environments.replay:Replay"),
    # One action in the corridor; the expert's is right, and a third of the given ones are wrong.
    "moves": TaskOf(),
}
MEASURED = (
    "fapo",
    "profiling_reward",
    "prs",
    "arena_rl",
    "parl_bilevel",
    "suffix_rewriter",
    "scope_recycle",
)
OF_RECIPES = {
    "igpo": "calculator",  # its rows have the answer
    "matchtir": "calculator",  # and the calls that lead to it
    "r3l": "kernel_timing",
    "reex_sql": "kernel_timing",  # the shipped model knows no SQL: rewarded for right kernels
    "cleaner_saar": "calculator",  # where few groups are refilled ten times
    "dr_kernel": "kernel_timing",
    "ui_s1_semi_online": "recordings",
    "chi0_stage_advantage": "moves",
    # In the corridor one success in a thousand drowns among the failures of the step or the critic.
    "marft": "kernel_timing",
    "mars": "kernel_timing",
    "archer": "kernel_timing",
    "digirl": "kernel_timing",
    "dart": "corridor",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "aepo_agentic_rollout": {"rollout.initial": 4},  # the other half branches
    "archer": {"plan.num_critic_updates": 10, "plan.warmup_steps": 5},
    "arpo": {"rollout.initial": 4},
    "branch_grpo": {"rollout.segment_tokens": 2},  # answers have six characters
    # As many answers as others, of an eighth of the prompts.
    "brorl": {
        "sampling.num_prompts": 2, "sampling.num_rollouts": 64, "rates.base": 128,
    },
    # The price of the paper's own task would keep the policy at its start. Its divergence of the
    # whole vocabulary rewards early ends: there answers have a fixed length.
    "cory": {"advantage.coef": 0.05, "advantage.full": False},
    "digirl": {"plan.num_policy_updates": 3, "curation.capacity": 800},
    "mc_grpo": {"sampling.num_rollouts": 9},  # its median is over an odd number
    "sol_rl_explore_then_train": {"sampling.num_rollouts": 16, "rollout.keep": 8},
    # Puzzles of the same numbers, whose expressions share terms such as 3*5.
    "sage_skill_chain": {
        "sampling.column": "numbers", "rollout.skill": r"(?P<name>\d+[-+*/]\d+)",
        "rollout.call": "{name}",
    },
    # A store that fits the rollouts of 60 steps.
    "spear": {"curation.size": 64, "curation.history": 64},
    "chi0_stage_advantage": {
        "rollout.words": "{label}:{prompt}", "rollout.labels": ["8", "9"], "rollout.max_tokens": 2,
        "sampling.horizon": 1, "sampling.percent": 50.0,
    },
    "cleaner_saar": {"rollout.marker": ""},  # also repairs lines that are not calls
    "ettrl_ear": {"sampling.num_prompts": 8, "sampling.num_rollouts": 32},  # more votes
    # The defaults of strop train: fewer episodes teach one answer for all (0.09) and no more.
    "igpo": {"sampling.num_prompts": 32, "sampling.num_rollouts": 16},
    "matchtir": {"sampling.num_prompts": 32, "sampling.num_rollouts": 16},
    "reex_sql": {"reward.names": ["correct"], "reward.weights": [1.0]},
    "t_ppo_egae": {
        "rollout.window": 3, "sampling.num_prompts": 128, "sampling.num_rollouts": 1,
    },
    "ps_grpo": {"sampling.num_prompts": 8},  # of two wordings each
}  # fmt: skip
PROMPTS, ANSWERS = 16, 8
TAUGHT_BY = "checkpoints/step-000090"  # of the teacher's run
REWARDS = '''
from strop.environments.countdown import correct


def measured(prompts, completions, numbers, target, log_extra, **columns):
    """1 for a right answer, which a judge prefers; short ones are fast, brackets are a flaw."""
    right = correct(prompts, completions, numbers, target)
    log_extra("speedup", [4 / max(len(text), 1) + 0.5 for text in completions])
    log_extra("profiled", [0.8] * len(right))
    log_extra("preference", right)
    log_extra("first_false_step", [int(r) - 1 for r in right])  # one step
    log_extra("decoy", [False] * len(right))
    log_extra("flaw", [text.find("(") for text in completions])
    return right
'''


@dataclass
class Setting:
    """task: its name; options: the method's, besides its defaults; the others: sections."""

    recipe: str
    task: str = "countdown"
    options: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    reward: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """What differs from the common setting."""
        return " ".join(f"{name}={value}" for name, value in self.options.items())

    def raw(self, steps: int, seed: int) -> dict[str, Any]:
        """Plain settings of the run."""
        algorithm = notation.recipe(self.recipe).algorithms[0]
        common: dict[str, Any] = {"sampling.num_prompts": PROMPTS, "sampling.num_rollouts": ANSWERS}
        if given := algorithm.rollout.part.given:
            common["sampling.num_rollouts"] = len(given)
        base, task = defaults("tiny"), TASKS[self.task].source or self.task
        return {
            "recipe": self.recipe,
            "seed": seed,
            "data": self.data if "files" in self.data else {"task": task, **self.data},
            "reward": self.reward,
            "model": self.model,
            "training": {**base["training"], "steps": steps, "save_every": 0, "rollouts_every": 0},
            "critic": base["critic"],
            "evaluation": {"every": steps, "num_samples": 8, "k": [1], "max_prompts": 128},
            "algorithm": {**common, **self.options},
        }


def files(folder: Path) -> None:
    """Write the data and rewards that some recipes need."""
    (folder / "rewards.py").write_text(REWARDS, encoding="utf-8")
    for split in ("train", "validation"):
        rows = puzzles(split)
        for row in rows:
            wrong = [text for text, value in expressions(tuple(row["numbers"]))
                     if value != row["target"]]  # fmt: skip
            row |= {"chosen": row["completion"], "rejected": wrong[row["target"] % len(wrong)]}
            row |= {"opponent": row["rejected"], "safe": row["target"] % 4 == 0}
        again = [
            {**row, "prompt": prompt_text(row["numbers"][::-1], row["target"])} for row in rows
        ]
        both = [*enumerate(rows), *enumerate(again)]
        is_train = split == "train"
        seeds = range(200) if is_train else range(10**9, 10**9 + 60)
        _write(folder / f"{split}.jsonl", rows)
        _write(folder / f"{split}_reworded.jsonl", [{**row, "set": n} for n, row in both])
        _write(folder / f"{split}_experts.jsonl", [{"steps": expert(seed)} for seed in seeds])
        _write(
            folder / f"{split}_moves.jsonl", [r for seed in seeds for r in moves(seed, is_train)]
        )


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def expert(seed: int) -> list[dict[str, str]]:
    """A recording of the shortest way through a corridor."""
    corridor = Corridor(style="compact")
    seen, steps = corridor.reset(seed), []
    while not seen.done:
        action = _wanted(corridor)
        steps.append({"observation": seen.text, "action": action})
        seen = corridor.step(action)
    return steps


def moves(seed: int, is_train: bool) -> list[dict[str, Any]]:
    """The turns of a walk of which every other action, on average, is drawn blindly, and the
    expert's actions. In validation the label that asks for good actions precedes the prompt.
    """
    draw, corridor = random.Random(seed), Corridor(style="compact", max_turns=50)
    seen, rows = corridor.reset(seed), []
    while not seen.done:
        right, stage = _wanted(corridor), int(corridor.has_key)
        action = right if draw.random() < 0.5 else draw.choice("123")
        place = "1,2,3" + seen.text.removeprefix("1,2,3")
        turn = {"episode": seed, "stage": stage, "turn": len(rows)}
        prompt = place if is_train else f"9:{place}"
        rows.append({"prompt": prompt, "completion": action, "answer": right, **turn})
        seen = corridor.step(action)
    return rows


def _wanted(corridor: Corridor) -> str:
    """The next action of the shortest way."""
    aim = corridor.size if corridor.has_key else corridor.key
    return "3" if corridor.position == aim else "12"[corridor.position < aim]


def teacher(folder: Path) -> Path:
    """`tiny` after 90 steps of `grpo` with 32 groups of 16 answers, trained unless it is there."""
    run = train(folder / "teacher", "grpo", "training.steps=90", "evaluation.every=90", "seed=100")
    return run / TAUGHT_BY


def setting_of(recipe: str, folder: Path) -> Setting:
    """The recipe's own setting, or that of its kind of task."""
    part = notation.recipe(recipe).algorithms[0].rollout.part
    kind = "corridor" if part.needs_environment else "countdown"
    setting = Setting(recipe, OF_RECIPES.get(recipe, kind), dict(OPTIONS.get(recipe, {})))
    if setting.task == "recordings":
        setting.data["task_config"] = {
            "file": str(folder / "train_experts.jsonl"),
            "validation_file": str(folder / "validation_experts.jsonl"),
            "earlier": "{observation}{action}", "max_action_tokens": 1,
        }  # fmt: skip
    elif setting.task == "moves":
        _from_files(setting, folder, "exact_match", "_moves")
    elif recipe == "ps_grpo":
        _from_files(setting, folder, "strop.environments.countdown:correct", "_reworded")
    elif "rejected" in part.given:
        _from_files(setting, folder, "strop.environments.countdown:correct")
    elif recipe in MEASURED:
        _from_files(setting, folder, f"{folder / 'rewards.py'}:measured")
    if "teacher" in needs_of(notation.recipe(recipe)):
        setting.model = {"reference": str(folder / "teacher" / TAUGHT_BY)}
    return setting


def _from_files(setting: Setting, folder: Path, reward: str, suffix: str = "") -> None:
    """Take the rows of these files, scored by a function."""
    setting.data = {
        "files": [str(folder / f"train{suffix}.jsonl")],
        "validation_files": [str(folder / f"validation{suffix}.jsonl")],
    }
    setting.reward = {"functions": [reward]}
    setting.options = {"rollout.max_tokens": 12, **setting.options}
