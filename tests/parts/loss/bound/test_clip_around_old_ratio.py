import math

import pytest
import torch
from builders import flat_batch, run

from strop.parts.loss.bound.clip_around_old_ratio import ClipAroundOldRatio


def test_worked_example_of_the_clip():
    # pi .3, behaviour .2, old .25: rho 1.5, centre 1.25, range 1.05 to 1.45
    logs = {"logp_old_T": [math.log(0.25)] * 3, "logp_behavior_T": [math.log(0.2)] * 3}
    ratio = [math.log(1.5), math.log(1.4), math.log(1.5)]
    batch = flat_batch((3,), log_ratio_T=ratio, advantage_T=[1.0, 1.0, -1.0], **logs)
    found = run(ClipAroundOldRatio(), batch)
    assert found.value.tolist() == pytest.approx([1.45, 1.4, -1.5])
    assert found.metrics["clip_ratio/high_mean"].tolist() == [1.0, 0.0, 0.0]
    low = batch.set(log_ratio_T=torch.full((3,), math.log(1.0)).double())
    assert run(ClipAroundOldRatio(), low).value.tolist() == pytest.approx([1.0, 1.0, -1.05])
    void = batch.set(logp_behavior_T=torch.full((3,), math.nan).double())
    assert run(ClipAroundOldRatio(), void).value.tolist() == pytest.approx([1.2, 1.2, -1.5])


def test_relative_widths():
    # rho = c exp(logp - logp_old): the clip of the plain ratio, times the centre
    logs = {"log_ratio_T": [0.9, 0.9], "logp_old_T": [-1.0] * 2, "logp_behavior_T": [-1.4] * 2}
    flat = flat_batch((2,), advantage_T=[1.0, -1.0], **logs)
    value = run(ClipAroundOldRatio(0.2, 0.3, relative=True), flat).value
    assert value.tolist() == pytest.approx([math.exp(0.4) * 1.3, -math.exp(0.9)])
