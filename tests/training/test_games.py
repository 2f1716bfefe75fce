"""Games of two players in whole runs: one policy, one rollout per seat, texts, table, metrics."""

import json

import pyarrow.parquet as pq
import pytest
import torch
from fakes.services import rolled_out
from models import tokenizer
from runs import world_of

from strop.data.observation_tokens import observation_ids
from strop.environments.base import EnvironmentSource
from strop.method.part import Draw
from strop.training.learner.step_models import refresh

CHAT = (
    "{% for m in messages %}({{ m.role[0:1] == 'u' and '1' or '2' }}:{{ m.content }})\n{% endfor %}"
    "{% if add_generation_prompt %}(2:{% endif %}"
)
GAMES = {
    "open_spiel": {"game": "tic_tac_toe", "style": "compact"},
    "hide_and_guess": {"defenders": 2, "style": "compact"},
}


def raw(task, recipe="mars", **sections):
    base = {
        "recipe": recipe, "model": {"name": "tiny"},
        "data": {"task": task, "task_config": GAMES[task], "train_size": 6},
        "training": {"steps": 2, "lr": 1e-3, "save_every": 0, "rollouts_every": 1},
        "algorithm": {"sampling.num_prompts": 3, "sampling.num_rollouts": 4},
        "evaluation": {"every": 2, "num_samples": 2, "max_prompts": 2},
    }  # fmt: skip
    return {**base, **{k: {**base.get(k, {}), **v} for k, v in sections.items()}}


def played(algorithm, world, num_rollouts=6):
    draws = tuple(Draw(uid, num_rollouts) for uid in world.pool)
    rng = torch.Generator().manual_seed(5)
    return rolled_out(algorithm.rollout.part, draws, world.engine, world.services, rng).batch


@pytest.mark.parametrize("task", GAMES)
def test_engine_and_trainer_agree_on_every_token_of_every_seat(task, find_caches):
    algorithm, world = world_of(raw(task))
    batches = []
    for held in (True, False):
        sources = find_caches(held)
        batches.append(played(algorithm, world))
        assert any(sources) == held
    held, anew = batches
    for name in ("id_T", "mask_T", "turn_T", "reward_K", "state_K", "player_B", "episode_B"):
        assert held[name].equal(anew[name]), name
    assert held.size("K") > held.size("B")
    now = refresh(held, ("logp_old_T",), world.act(algorithm))
    mask_T = now["mask_T"]
    assert (now["logp_old_T"] - held["logp_sampler_T"])[mask_T].abs().max() < 1e-4


@pytest.mark.parametrize("task", GAMES)
def test_seats_replay_to_the_game_that_the_environment_played(task):
    """The actions of all seats in their order show each seat what it saw, in a fresh game."""
    algorithm, world = world_of(raw(task))
    batch = played(algorithm, world)
    said = world.services.log.logged["turns"]
    games = {}
    for b in range(batch.size("B")):
        seats = games.setdefault(int(batch["episode_B"][b]), {})
        seats[int(batch["player_B"][b])] = said[int(batch["rollout_uid_B"][b])]
        seats["uid"] = int(batch["uid_P"][batch["group_B"][b]])
    for seats in games.values():
        game = EnvironmentSource(task, GAMES[task]).make()
        observation = game.reset(seats.pop("uid"))
        places = dict.fromkeys(seats, 0)
        worth = dict.fromkeys(seats, 0.0)
        while not observation.done:
            player = observation.role
            turn = seats[player][places[player]]
            places[player] += 1
            assert turn["observation"] == observation.text
            observation = game.step(turn["action"])
            for who in seats:
                if observation.rewards and places[who]:
                    worth[who] += observation.rewards[who]
        assert places == {player: len(turns) for player, turns in seats.items()}
        for player, turns in seats.items():
            assert sum(turn["reward"] for turn in turns) == pytest.approx(worth[player])


@pytest.mark.parametrize("task", GAMES)
def test_table_and_metrics_of_a_run(task, runner, tmp_path):
    folder = tmp_path / "run"
    runner.whole(raw(task), folder)
    rows = pq.read_table(folder / "rollouts/step-000002.parquet").to_pylist()
    roles = EnvironmentSource(task, GAMES[task]).make().roles
    games = {row["episode"] for row in rows}
    assert len(games) == 12
    for row in rows:
        told = json.loads(row["turns"])
        assert row["prompt"] == told[0]["observation"]
        assert row["completion"] == "".join(turn["action"] for turn in told)
        assert row["reward"] == pytest.approx(sum(turn["reward"] for turn in told))
        assert row["draw"] == roles[row["player"]]
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    for role in set(roles):
        own = [row["reward"] for row in rows if roles[row["player"]] == role]
        assert last[f"episode/reward_role_{role}"] == pytest.approx(sum(own) / len(own))
    assert "eval/validation/mean@n" in last


def test_in_a_chat_every_seat_opens_with_the_template():
    """The text of a player's first turn is encoded as a prompt is, later ones as answers."""
    _, world = world_of(raw("hide_and_guess"))
    texts, episodes = world.services.texts, world.services.episodes
    assert texts.decode(episodes.opening_ids("1,9=")) == "1,9="
    ours = tokenizer()
    ours.chat_template = CHAT
    texts.tokenizer = ours
    episodes._observed.clear()
    opening = episodes.opening_ids(" 1,9= ")
    assert ours.decode(opening) == "(1:1,9=)\n(2:"
    later = observation_ids(ours, "1,9=", True, opening[-1])
    assert ours.decode(later) == ")\n(1:1,9=)\n(2:"


def test_rewards_see_what_each_player_saw(runner, tmp_path):
    own = tmp_path / "rewards.py"
    own.write_text(
        "def opening(prompts, completions, **columns):\n"
        "    return [float(p[:1] == '(') for p in prompts]\n"
    )
    folder = tmp_path / "run"
    plain = raw("hide_and_guess", "grpo", reward={"functions": [f"{own}:opening"]})
    runner.whole(plain, folder)
    rows = pq.read_table(folder / "rollouts/step-000001.parquet").to_pylist()
    assert {row["player"] for row in rows} == {0, 1, 2}
    assert all(row["reward/opening"] == float(row["player"] == 0) for row in rows)
