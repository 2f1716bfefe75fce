import json

from models import Lab
from runs import Runner

from strop.method.check import check
from strop.recipes.grpo import grpo
from strop.recipes.suffix_rewriter import suffix_rewriter


def test_is_grpo_on_its_own_rewards():
    algorithm = suffix_rewriter(clip_high=0.3)
    check(algorithm)
    parent = grpo(clip_high=0.3)
    assert algorithm.reward[:-1] == parent.reward
    assert algorithm.advantage == parent.advantage
    assert algorithm.terms == parent.terms


def test_learns_to_copy_what_is_safe_and_to_mend_the_rest(tmp_path):
    """Half of the rows are safe: there digits, the reward, do not pay."""
    lab = Lab.make(tmp_path)
    rows = [{"prompt": f"{n}:", "completion": "7", "safe": n % 2 == 0} for n in range(12)]
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    raw = lab.raw(
        "suffix_rewriter", reward="digits", data={"validation_size": 0},
        training={"steps": 20, "save_every": 0},
    )  # fmt: skip
    raw["algorithm"] |= {"sampling.num_prompts": 6, "rollout.max_tokens": 2}
    seen = [m for m in Runner().go(Runner().start(raw, tmp_path / "run")).seen if "loss" in m]
    first, last = (sum(m["reward"] for m in part) / 5 for part in (seen[:5], seen[-5:]))
    assert last > first + 0.1, (first, last)
