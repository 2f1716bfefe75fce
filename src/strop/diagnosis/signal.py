"""Finds why entropy falls, whether steps are too large, and which groups give no signal."""

from collections import Counter, defaultdict
from statistics import stdev
from typing import Any

from strop.diagnosis.finding import Finding, mean, shortened

FALLEN, COLLAPSED, RISEN = 0.5, 0.1, 3.0  # entropy late in the run / entropy at first
NO_SIGNAL, LITTLE_SIGNAL = 0.9, 0.6  # share of groups whose rewards are all equal
ZERO_ADVANTAGE = 1e-6  # advantages closer to 0 count as 0
FAR = 0.02  # mean nats a token by which the updates of a step move the policy
MOST_PROMPTS = 5
FEWEST_STEPS = 30  # minimum length of a run to judge its course


def entropy(run: Any) -> Finding:
    """How entropy changed, and what moves it."""
    question = "How does entropy move, and why?"
    values = run.series("entropy")
    if not values:
        return Finding(question, "unknown", "The metrics have no entropy.")
    size = max(1, min(10, len(values) // 10))
    first, last = mean(values[:size]), mean(values[-size:])
    numbers: dict[str, Any] = {"first": first, "last": last, "min": min(values),
                               **_positive(run.rows), **_band(run)}  # fmt: skip
    answer = f"It went from {first:.3f} to {last:.3f} nats (lowest {min(values):.3f})."
    if "positive share at first" in numbers:
        answer += " Rollouts with a positive advantage, of those with any: "
        answer += f"{numbers['positive share at first']:.0%} at first, "
        answer += f"{numbers['positive share at last']:.0%} at last; they sharpen the policy."
    if "band low" in numbers:
        answer += f" Band of the control: {numbers['band low']:.2f} to {numbers['band high']:.2f}."
    ratio = last / first if first > 0 else 1.0
    keep = "to keep it up: loss.clip_high=0.28, the recipe entrocraft (a band), "
    keep += "adaptive_entropy_coef (a controlled bonus), clip_cov or kl_cov, a lower training.lr; "
    keep += "a fall alone is no fault while validation pass@k rises"
    if ratio < COLLAPSED:
        return Finding(question, "problem", answer + " It collapsed.", keep, numbers)
    if ratio < FALLEN:
        return Finding(question, "note", answer, keep, numbers)
    if ratio > RISEN:
        lower = "lower training.lr, loss.clip_high or the coefficient of entropy; see whether "
        lower += "answers get longer"
        return Finding(question, "note", answer + " It rises.", lower, numbers)
    return Finding(question, "ok", answer + " It does not fall by half.", numbers=numbers)


def _positive(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Share of positive advantages among those other than 0, in the first and last stored step."""
    by_step: dict[int, list[bool]] = defaultdict(list)
    for row in rows:
        if row["advantage"]:
            by_step[row["step"]].append(row["advantage"] > 0)
    if not by_step:
        return {}
    return {"positive share at first": mean(by_step[min(by_step)]),
            "positive share at last": mean(by_step[max(by_step)])}  # fmt: skip


def _band(run: Any) -> dict[str, float]:
    low, high = run.series("entropy_control/low"), run.series("entropy_control/high")
    return {"band low": low[-1], "band high": high[-1]} if low and high else {}


def movement(run: Any) -> Finding:
    """Whether steps are too large for their data: reward stands still while the policy moves.

    Data to divergence: answers a step divided by the KL by which its updates move the policy. A
    plateau due to steps too large for their noise ends with a smaller step. Source: arXiv
    2603.06009.
    """
    question = "Does reward stand still because steps are too large?"
    moved, rewards = run.late("approx_kl"), run.series("reward")
    if not moved:
        return Finding(question, "unknown", "The metrics have no approx_kl.")
    if mean(moved) == 0:
        return Finding(question, "unknown", "Each step has one update, so nothing is seen to move.")
    if len(rewards) < FEWEST_STEPS:
        few = f"{len(rewards)} steps have a reward; this takes {FEWEST_STEPS} or more."
        return Finding(question, "unknown", few)
    third = len(rewards) // 3
    before, late = rewards[-2 * third : -third], rewards[-third:]
    gain = mean(late) - mean(before)
    error = sum(stdev(each) ** 2 / len(each) for each in (before, late)) ** 0.5  # of the gain
    answers = mean(run.late("num_rollouts") or [0.0])
    numbers = {"approx_kl": mean(moved), "answers a step": answers, "gain": gain, "error": error,
               "answers for a nat": answers / mean(moved)}  # fmt: skip
    answer = (
        f"Reward went from {mean(before):.3f} to {mean(late):.3f} over the last two thirds (error "
        f"of the difference {error:.3f}). The updates of a step move the policy by "
        f"{mean(moved):.2g} nats a token, for {answers:.0f} answers; limit {FAR}."
    )
    if gain > error or mean(moved) <= FAR:
        return Finding(question, "ok", answer, numbers=numbers)
    advice = (
        "lower training.lr fivefold and resume: if reward rises again, the steps were too large "
        "for their noise; more answers a step (with as many more updates, not larger ones), a "
        "tighter clip or fewer updates do the same; if it does not, the cause is another one"
    )
    return Finding(question, "note", answer, advice, numbers)


def groups(run: Any) -> Finding:
    """Which groups have equal rewards, and which prompts they belong to."""
    question = "Which groups give no signal?"
    late = run.late("frac_reward_zero_std")
    if not late:
        why = "no answer has a score, or none is learnt from"
        return Finding(question, "unknown", f"The metrics have no frac_reward_zero_std: {why}.")
    share = mean(late)
    numbers: dict[str, Any] = {"late frac_reward_zero_std": share}
    answer = f"{share:.0%} of the groups late in the run have equal rewards."
    wrong, right = (run.series(f"groups/frac_all_{which}") for which in (0, 1))
    if wrong and right:
        numbers |= {"mean frac_all_0": mean(wrong), "mean frac_all_1": mean(right)}
        answer += f" Over the run {mean(wrong):.0%} are all wrong, {mean(right):.0%} all right."
    prompts = uniform_prompts(run.rows)
    numbers["prompts"] = prompts
    if prompts:
        examples = (f"{p['prompt']!r} ({p['uniform']} of {p['groups']}, reward {p['reward']:g})"
                for p in prompts)  # fmt: skip
        answer += " Most often: " + "; ".join(examples) + "."
    status: Any = "problem" if share > NO_SIGNAL else "note" if share > LITTLE_SIGNAL else "ok"
    if status == "ok":
        return Finding(question, status, answer, numbers=numbers)
    if learns_from_equal(run):
        answer += " Advantages are not 0 where all rewards are equal, so these groups teach too."
        return Finding(question, "note", answer, numbers=numbers)
    easy = bool(wrong and right) and mean(right) > mean(wrong)
    advice = (
        "most are solved: give harder prompts, or drop_uniform_groups; stop when validation is flat"
        if easy
        else "give easier prompts or a reward with parts, raise sampling.num_rollouts, or refill "
        "with the recipe dapo; ngrpo learns from groups that are all wrong"
    )
    return Finding(question, status, answer, advice, numbers)


def learns_from_equal(run: Any) -> bool:
    """Whether advantages differ from 0 in some step in which no group has different rewards: with
    one rollout a prompt, or where the method has another baseline than the group's.
    """
    return any(
        line.get("frac_reward_zero_std") == 1.0
        and (line.get("advantage/abs_mean") or 0.0) > ZERO_ADVANTAGE
        and line.get("groups/frac_rollouts_with_gradient") != 0.0  # the turns' may all be 0
        for line in run.lines
    )


def uniform_prompts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The prompts whose groups most often have equal rewards: text, how often, of how many groups,
    reward.
    """
    rewards: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    texts: dict[int, str] = {}
    for row in rows:
        texts[row["uid"]] = row["prompt"]
        if row["scored"]:
            rewards[row["step"], row["uid"], row["draw"]].append(row["reward"])
    uniform: Counter[int] = Counter()
    total: Counter[int] = Counter()
    value: dict[int, float] = {}
    for (_, uid, _), given in rewards.items():
        total[uid] += 1
        if len(given) > 1 and max(given) == min(given):
            uniform[uid] += 1
            value[uid] = given[0]
    ranked = sorted(uniform, key=lambda uid: (-uniform[uid], -uniform[uid] / total[uid], uid))
    return [
        {"uid": uid, "prompt": shortened(texts[uid], 60), "uniform": uniform[uid],
         "groups": total[uid], "reward": value[uid]}
        for uid in ranked[:MOST_PROMPTS]
    ]  # fmt: skip
