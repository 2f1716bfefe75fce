"""Write docs/AUDIT.md: every recipe audited on one small tree, or why it cannot be.

    python tools/write_audit.py

It takes up to ten minutes on one core; afterwards redraw docs/pictures/audit.png
(tools/draw_pictures.py). A test compares some of the lines with the page.
"""

import argparse
import dataclasses
import math
import statistics
from pathlib import Path

from strop.auditing.estimate import Audit, Limits
from strop.auditing.vary import Setting, one, phases_of
from strop.catalogue import catalogue
from strop.support.errors import UserError
from strop.training.settings import config

PAGE = Path(__file__).parents[1] / "docs" / "AUDIT.md"
BASE = Setting()
LIMITS = Limits(most=1100, draws=400)
HEADER = """# What each method does on average, by enumeration

`strop audit RECIPE` runs a method's own step (reward, curation, advantage, selection, loss, update:
the trainer's code) on a policy so small that every group of answers can be listed, and compares the
mean of all steps with the true gradient of the expected reward. It shows what a method aims at and
how noisy its step is, but nothing about networks, whose tokens share weights, or long runs.

![What some methods make of easy and of hard prompts, and bias and noise of all](pictures/audit.png)

The picture shows the table below (`python tools/draw_pictures.py audit` draws it): on the left how
a method weighs an easy and a hard prompt against one of success 0.3, on the right the bias and the
noise of its step.

The tree has answers of up to three tokens from a vocabulary of two, of which the first ends an
answer (four answers, two right), and one free logit for each token at each place. A step has one
prompt and four answers a group, success 0.3, rollouts drawn by the policy itself, and as many
updates as the recipe makes of one prompt, each at rate 0.3 (mini-batches do not split a prompt:
`gspo`, with four, makes one here). Where episodes are played, a token is a turn. Critics know the
true values. There are no earlier steps: whatever a method tracks or steers has its initial value.
Where a method asks for more answers of a group (`dars`), all ways to draw those follow the group.

d is the change of the logits over the rate, J the expected reward, H the entropy of a token:

| column | meaning |
| --- | --- |
| scale | `<E d, grad J> / abs(grad J)^2`: the mean step along grad J, over the length of grad J |
| easy, hard | the scale for prompts of success 0.7 and 0.1, over that at 0.3 |
| bias | length of the mean step's part across the gradient, over its part along the gradient |
| noise | standard deviation of the step, over the length of its mean |
| price | change of entropy (nats a token) per unit of success gained, first order |
| silent | share of groups that move nothing |
| refilled | share of groups that the method replaces by others |
| stale | bias when the answers were drawn eight steps earlier |
| four | bias with four updates on the same answers (empty: cannot be set) |

On this tree the true gradient itself has a price of {price:.3f}. `±` marks numbers from {draws}
drawn groups (95% interval) in place of all: the step itself drew random numbers. The bias at old
answers is relative to the current policy's gradient.

Group size: with a group's centred rewards as credit the step is a U-statistic of order two
(arXiv 2603.01162), and its error by size follows Hoeffding's formula, which a test confirms by
enumeration. For one prompt and a fixed total number of answers, larger groups lower the error,
towards that of an oracle that knows the expected reward. If prompts are drawn as well, the best
size does not depend on the number of answers: 1 + sqrt((2 zeta_2 - 4 zeta_1) P / (P - 1)) for P
similar prompts, where zeta_1 and zeta_2 are the variances, over the gradient's square, of the
contributions of one and of two answers. The claims of `dr_grpo` on [CLAIMS.md](CLAIMS.md) have
numbers.

Written by `python tools/write_audit.py`; change the code, not this file.

| recipe | scale | easy | hard | bias | noise | price | silent | refilled | stale | four |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
SHAPES = range(1, 6)
TAUGHT = Setting(depth=3, branching=4, ragged=False, group=1)
KL = 'gkd bound=penalise_kl_to_reference(estimator="{}")'
# Methods that learn from a teacher, and settings of them that make another estimator.
ESTIMATORS = (
    "on_policy_distillation", "on_policy_distillation(gamma=1)", "vopd", "opsd(sampled=True)",
    *(KL.format(name) for name in ("k1", "k2", "k3")),
    "gkd(divergence='reverse')",
    "gkd(divergence='reverse', top_k=2)",
    "gkd(divergence='reverse', top_k=2, others='renormalise')",
    "gkd(divergence='reverse', top_k=2, top_of='current')",
    "gkd(divergence='reverse', top_k=2, top_of='current', others='renormalise')",
    "gkd(divergence='forward')", "gkd", "opsd",
)  # fmt: skip
TEACHER = """
## Learning from a teacher

Here J is minus the divergence KL(policy || teacher) over whole answers, in nats, and the teacher is
another softmax on the same tree, of success 0.7. All answers have three tokens from a vocabulary of
four (64 answers), so that an average over tokens has one denominator. A step has one answer, and
the table shows medians of five trees, policies and teachers. Most of these methods compute another
gradient: that of the divergences at all tokens, as if no token changed which others follow it.
`token bias` is the bias relative to that one. For `opsd` the policy after a hint is also another
softmax.

| recipe | cosine | bias | token bias | noise | stale | four |
| --- | --- | --- | --- | --- | --- | --- |
"""
TEACHER_ENDS = """
`cosine` is the cosine of the mean step and grad J; `stale` and `four` are token biases; `-` means
that the mean step is 0. The forward divergence and the one of Jensen and Shannon are other aims
than J, not estimates of it.
"""
REST = """
## Not enumerated

| recipe | why |
| --- | --- |
"""


def row(recipe: str, number: int = 1, phase: str = "") -> str:
    """The recipe's line of the table, or that of one of its phases. Raises UserError where it
    cannot be enumerated.
    """
    base = _audit(recipe, number)
    scales = (_audit(recipe, number, success=p).scale.value for p in (0.7, 0.1))
    easy, hard = (scale / base.scale.value for scale in scales)
    price = base.entropy_change.value / base.success_change.value
    try:
        four = _shown(*_audit(recipe, number, updates=4).bias)
    except UserError:
        four = ""
    cells = [
        _shown(*base.scale), _shown(easy), _shown(hard), _shown(*base.bias), _shown(*base.noise),
        _shown(price), _shown(*base.no_signal), _shown(*base.thrown_away),
        _shown(*_audit(recipe, number, staleness=8).bias), four,
    ]  # fmt: skip
    return f"| {_name(recipe, phase)} | {' | '.join(cells)} |"


def taught_row(method: str) -> str:
    """The line of a method that learns from a teacher: medians over shapes."""
    found = [
        [
            each.cosine, each.bias, each.token_bias, each.noise,
            *(_audit(method, base=base, **changed).token_bias
              for changed in ({"staleness": 8}, {"updates": 4})),
        ]
        for base in (dataclasses.replace(TAUGHT, shape=shape) for shape in SHAPES)
        for each in [_audit(method, base=base)]
    ]  # fmt: skip
    medians = [statistics.median(n.value for n in column) for column in zip(*found, strict=True)]
    return f"| `{method}` | {' | '.join(map(_shown, medians))} |"


def _name(recipe: str, phase: str) -> str:
    return f"`{recipe}`: {phase}" if phase else f"`{recipe}`"


def _settings(method: str) -> config.RunConfig:
    recipe, *options = method.split(" bound=")
    stages = {"bound": options[0]} if options else {}
    return config.make({"recipe": recipe, "model": {"name": "tiny"}, "stages": stages})


def _audit(method: str, number: int = 1, base: Setting = BASE, **changes: float) -> Audit:
    return one(_settings(method), dataclasses.replace(base, **changes), LIMITS, number)


def _shown(value: float, within: float = 0.0) -> str:
    if not math.isfinite(value):
        return "-"
    text = f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
    text = "0.00" if text == "-0.00" else text
    return f"{text}±{within:.2f}" if within else text


def page() -> str:
    """The whole page."""
    rows, left = [], []
    for entry in catalogue.recipes():
        if entry.name in {method.split("(")[0] for method in ESTIMATORS}:
            continue
        for number, phase in enumerate(phases_of(_settings(entry.name)), 1):
            try:
                rows.append(row(entry.name, number, phase))
            except UserError as error:
                left.append(f"| {_name(entry.name, phase)} | {error} |")
        print(entry.name, flush=True)
    truth = _audit("rloo").truth
    slope = truth.success_slope
    price = float((slope * truth.entropy_slope).sum() / slope.square().sum())
    header = HEADER.format(price=price, draws=LIMITS.draws)
    estimators = TEACHER + "\n".join(map(taught_row, ESTIMATORS)) + "\n" + TEACHER_ENDS
    return header + "\n".join(rows) + "\n" + estimators + REST + "\n".join(left) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
