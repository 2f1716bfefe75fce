"""Turns labelled by the progress that an estimator predicts, and imitated with their label."""

import json

import pytest
import torch
from models import Lab, without_times
from runs import Runner

from strop.parts.sampling._progress import (
    features,
    fit,
    in_order,
    look_ahead,
    pairs,
    stage_progress,
    top_share,
)
from strop.parts.sampling.label_by_progress import LabelByProgress
from strop.recipes.chi0_stage_advantage import chi0_stage_advantage
from strop.recipes.sft import sft
from strop.support.errors import UserError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def frames(num_episodes=40, seed=1):
    """Episodes of two stages; a frame shows its progress as an angle, and something irrelevant.

    The agent is held up for a while in a place of its own, where it makes no progress.
    """
    rng, episodes, stages, shown = generator(seed), [], [], []
    for episode in range(num_episodes):
        lengths = torch.randint(3, 9, (2,), generator=rng).tolist()
        for stage, length in enumerate(lengths):
            for place in range(length):
                progress = (stage + place / length) / 2
                noise = float(torch.randn((), generator=rng))
                angle = torch.tensor(2.5 * progress)
                shown.append([float(angle.cos()), float(angle.sin()), noise])
                episodes.append(episode)
                stages.append(stage)
    return torch.tensor(shown).double(), torch.tensor(episodes), torch.tensor(stages)


def test_the_estimator_learns_progress_between_frames_of_unseen_episodes():
    feature_NF, episode_N, stage_N = frames()
    progress_N = stage_progress(stage_N, episode_N, 2)
    estimator, error = fit(feature_NF, progress_N, episode_N, 800, generator())
    assert error**0.5 < 0.05
    fresh_NF, fresh_N, fresh_stage_N = frames(num_episodes=10, seed=9)
    a, b = pairs(fresh_N)(200, generator(5))
    wanted = stage_progress(fresh_stage_N, fresh_N, 2)
    wanted = wanted[b] - wanted[a]
    found = estimator(fresh_NF[a], fresh_NF[b])
    assert float((found - wanted).square().mean().sqrt()) < 0.06
    assert float(wanted.std()) > 0.3  # the error of predicting nothing


def test_pairs_are_two_frames_of_one_episode_and_all_of_them_occur():
    episode_N = torch.tensor([7, 7, 7, 2, 4, 4])
    first, second = pairs(episode_N)(2000, generator())
    assert (first != second).all()
    assert episode_N[first].equal(episode_N[second])
    seen = set(zip(first.tolist(), second.tolist(), strict=True))
    assert seen == {(a, b) for a in range(3) for b in range(3) if a != b} | {(4, 5), (5, 4)}
    with pytest.raises(ValueError, match="one frame only"):
        pairs(torch.arange(3))


@pytest.mark.parametrize("relative", [True, False])
def test_labels_are_those_of_the_true_progress(relative):
    feature_NF, episode_N, stage_N = frames()
    part = LabelByProgress(horizon=4, percent=50, relative=relative, fit_steps=800)
    found, rmse = part.label(feature_NF, episode_N, stage_N, generator())
    assert rmse < 0.05
    progress_N = stage_progress(stage_N, episode_N, 2)
    advantage_N = look_ahead(episode_N, 4, lambda a, b: progress_N[b] - progress_N[a])
    wanted = top_share(advantage_N, 50, stage_N)
    assert float((found == wanted.long()).double().mean()) > 0.85
    for stage in (0, 1):  # a half of each stage's own turns
        inside = stage_N == stage
        assert int(found[inside].sum()) == round(int(inside.sum()) / 2)


def test_bins_and_a_single_stage():
    feature_NF, episode_N, _ = frames(num_episodes=10)
    one_stage = torch.zeros_like(episode_N)
    part = LabelByProgress(horizon=3, num_slices=4, fit_steps=50)
    found, _ = part.label(feature_NF, episode_N, one_stage, generator())
    assert set(found.tolist()) == {0, 1, 2, 3}
    counts = found.bincount()
    assert int(counts.max() - counts.min()) <= 1
    good, _ = LabelByProgress(percent=30, fit_steps=50).label(
        feature_NF, episode_N, one_stage, generator()
    )
    assert int(good.sum()) == round(0.3 * len(good))


ROWS = [
    {"prompt": f"{episode}+{turn}:", "completion": f"={turn}", "episode": f"e{episode}",
     "stage": turn // 3, "turn": turn}
    for turn in (4, 0, 2, 5, 1, 3) for episode in range(5)
]  # fmt: skip
LABELLED = {"words": "{prompt}{label}", "labels": ("0)", "1)")}
NOTATION = "chi0_stage_advantage(words='{prompt}{label}', labels=('0)', '1)'), fit_steps=20)"


@pytest.fixture
def lab(tmp_path):
    lab = Lab.make(tmp_path)
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return lab


def settings(lab, steps):
    raw = lab.raw(NOTATION, training={"steps": steps, "save_every": 2})
    raw["data"] = {"files": [str(lab.data)]}
    raw["reward"], raw["algorithm"] = {}, {"sampling.num_prompts": 4}
    return raw


def test_a_run_labels_once_and_goes_on_with_its_labels(lab, tmp_path):
    runner = Runner()
    runner.whole(settings(lab, 4), tmp_path / "whole")
    half = runner.start(settings(lab, 4), tmp_path / "half")

    def stop(run):
        run.stop_asked = run.done == 2

    runner.go(half, stop)
    labels = half.state["sampling.draw_in_shuffled_order"]["labels"]
    assert len(labels) == 30
    assert sum(labels.values()) == 2 * round(0.7 * 15)
    again = runner.resume(tmp_path / "half")
    runner.go(again)
    assert again.state["sampling.draw_in_shuffled_order"]["labels"] == labels
    lines = without_times(tmp_path / "whole")
    assert lines == without_times(tmp_path / "half")
    assert lines[-1]["progress/frac_good"] == pytest.approx(sum(labels.values()) / 30)


def test_a_turn_is_a_number_in_every_row_or_in_none(lab, tmp_path):
    for turn in (None, "3"):
        rows = [{**ROWS[0], "turn": turn}, *ROWS[1:]]
        lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        run = Runner().start(settings(lab, 1), tmp_path / f"run {turn}")
        with pytest.raises(UserError, match=f"turn of prompt 0 is {turn!r}: make it a whole num"):
            in_order(run.world.pool, run.world.services.texts)


def test_frames_are_in_order_and_prompts_say_their_label(lab, tmp_path):
    runner = Runner()
    run = runner.start(settings(lab, 1), tmp_path / "run")
    services = run.world.services
    run.world.act(run.algorithm)
    uids, episode_N, stage_N = in_order(run.world.pool, services.texts)
    rows = [services.texts.row(uid) for uid in uids]
    assert [row["turn"] for row in rows] == list(range(6)) * 5
    assert episode_N.tolist() == sorted(episode_N.tolist())
    assert stage_N.tolist() == [0, 0, 0, 1, 1, 1] * 5
    states = features(uids, services.texts, services.scoring)
    assert states.shape == (30, 32)
    with torch.no_grad():  # the state after the prompt's last token
        ids = torch.tensor([services.texts.prompt_ids(uids[7])])
        alone = run.world.policy.model.model(input_ids=ids).last_hidden_state[0, -1]
    torch.testing.assert_close(states[7], alone.double(), rtol=1e-4, atol=1e-5)
    part, read = run.algorithm.sampling[0].part, run.algorithm.rollout.part
    drawn = part(run.world.pool, part.init(), generator(), services.texts, services.scoring)
    batch = read.read(drawn.value, services.texts, services.sampling)
    for row, draw in enumerate(drawn.value):
        given = batch["id_T"][(batch["rollout_T"] == row) & ~batch["mask_T"]].tolist()
        shown = services.texts.prompt_text(draw.uid) + f"{int(draw.columns['label_B'])})"
        assert services.texts.decode(given) == shown
    run.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"episode": None}, "has no episode"),
        ({"stage": -1}, "make it a whole number from 0"),
        ({"stage": 0.5}, "make it a whole number from 0"),
    ],
)
def test_rows_without_stages_are_named(lab, tmp_path, change, message):
    rows = [{**ROWS[0], **change}, *ROWS[1:]]
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    runner = Runner()
    run = runner.start(settings(lab, 1), tmp_path / "run")
    with pytest.raises(UserError, match=message):
        runner.go(run)


def test_it_is_sft_with_another_reading():
    ours, parent = chi0_stage_advantage(**LABELLED), sft()
    assert (ours.terms, ours.advantage, ours.reward) == (
        parent.terms, parent.advantage, parent.reward,
    )  # fmt: skip
    assert chi0_stage_advantage(num_slices=5).rollout.part.labels == ()
    with pytest.raises(UserError, match=r"must show \{prompt\}"):
        chi0_stage_advantage(words="{label}")
