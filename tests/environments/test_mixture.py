"""Several environments as one task: each plays the episodes that it plays alone."""

import textwrap

import pytest
from commands import Strop
from test_examples import last_metrics

from strop.environments.base import EnvironmentSource, source_of
from strop.environments.episodes import Episodes
from strop.environments.tasks import load_task
from strop.support.errors import UserError
from strop.training.settings import config

OPTIONS = {"corridor": {"size": 3, "style": "compact"}, "easy": {"size": 5, "style": "compact"}}
NAME = "corridor + easy=hidden_number"
SLOW = """
    from strop.environments import Environment, Observation

    class Slow(Environment):
        max_turns, reward_range = 2, (0.0, 3.0)

        async def reset(self, seed):
            return Observation(f"{seed}:")

        async def step(self, action):
            return Observation("=", 1.0)
"""


def test_prompts_origins_and_sets():
    task = load_task(NAME, num_train=4, num_validation=2, num_heldout=1, config=OPTIONS,
                     weights=[3, 1])  # fmt: skip
    corridor = load_task("corridor", num_train=4, config=OPTIONS["corridor"])
    number = load_task("hidden_number", num_train=4, config=OPTIONS["easy"])
    alone = [prompt.prompt for prompt in (*corridor.train, *number.train)]
    assert [prompt.prompt for prompt in task.train] == alone
    assert [tuple(origin) for origin in task.origins] == [("corridor", 4, 3), ("easy", 8, 1)]
    assert list(task.validations) == ["corridor", "easy"]
    uids = [prompt.uid for prompts in task.splits.values() for prompt in prompts]
    assert len(uids) == len(set(uids)) == 8 + 4 + 2
    assert task.reward_range == (0.0, 1.0)
    assert task.max_tokens == 9 * 1  # turns of the corridor, tokens of either


def test_an_episode_is_the_one_that_its_environment_plays_alone():
    source = source_of(NAME, OPTIONS)
    mixed = Episodes(source, [2 * 7, 2 * 7 + 1])
    names = zip(("corridor", "hidden_number"), OPTIONS.values(), strict=True)
    alone = [Episodes(EnvironmentSource(*each), [7]) for each in names]
    assert mixed.reset() == [each.reset()[0] for each in alone]
    for action in "123":
        shown = mixed.step([0, 1], [action] * 2)
        for here, there in zip(shown, alone, strict=True):
            (wanted,) = there.step([0], [action])
            assert (here.text, here.reward, here.done) == (wanted.text, wanted.reward, wanted.done)
            assert not here.truncated or not wanted.done


TOOLS = """
    from strop.environments import Environment, Observation

    class Shop(Environment):
        def __init__(self, named="price", unit="cents"):
            self.named, self.unit = named, unit

        def tools(self):
            def price(item: str) -> str:
                return ""

            price.__name__ = self.named
            price.__doc__ = f'''A price in {self.unit}.\n\n    Args:\n        item: A word.\n    '''
            return [price]

        def reset(self, seed):
            return Observation(f"{seed}:")

        def step(self, action):
            return Observation("=", 1.0)
"""


def test_the_tools_of_all_environments_are_offered(tmp_path):
    file = tmp_path / "shops.py"
    file.write_text(textwrap.dedent(TOOLS))
    name = f"a={file}:Shop + b={file}:Shop + c={file}:Shop + corridor"
    source = source_of(name, {"b": {"named": "cost"}})
    assert [tool.name for tool in source.tools()] == ["price", "cost"]
    with pytest.raises(UserError, match="have different tools called price: give one of them"):
        source_of(name, {"b": {"unit": "euros"}}).tools()


def test_an_episode_has_its_own_environments_limit_of_turns():
    mixed = source_of(NAME, OPTIONS).make()
    number = EnvironmentSource("hidden_number", OPTIONS["easy"]).make()
    assert mixed.max_turns == 9 > number.max_turns
    mixed.reset(1)
    shown = [mixed.step("x") for _ in range(number.max_turns)]
    assert [each.truncated for each in shown] == [False] * (number.max_turns - 1) + [True]
    mixed.reset(1)
    assert not mixed.step("x").truncated


def test_players_take_turns_of_their_own():
    games = source_of("a=open_spiel + b=open_spiel", {k: {"style": "compact"} for k in "ab"})
    kuhn = games.make()
    assert kuhn.roles == (0, 1)
    first = kuhn.reset(0)
    assert kuhn.step("0").role == 1 - first.role


def test_asynchronous_ones_beside_others(tmp_path):
    file = tmp_path / "slow.py"
    file.write_text(textwrap.dedent(SLOW), encoding="utf-8")
    source = source_of(f"corridor + slow={file}:Slow", {"corridor": OPTIONS["corridor"]})
    assert source.is_asynchronous
    assert source.make().reward_range == (0.0, 3.0)
    episodes = Episodes(source, [8, 9])
    shown = episodes.reset()
    assert shown[1].text == "4:"
    assert shown[0].text == EnvironmentSource("corridor", OPTIONS["corridor"]).make().reset(4).text
    episodes.step([0, 1], ["1", "a"])
    assert episodes.step([1], ["a"])[0].truncated
    episodes.close()


def test_what_an_action_block_wraps_says_whether_it_is_awaited(tmp_path):
    (tmp_path / "slow.py").write_text(textwrap.dedent(SLOW), encoding="utf-8")
    inner = {"environment": f"{tmp_path}/slow.py:Slow", "instruction": ""}
    block = "strop.environments.action_block:ActionBlock"
    source = source_of(f"corridor + block={block}", {"block": inner})
    assert source.is_asynchronous
    episodes = Episodes(source, [9])
    assert episodes.reset()[0].text == "4:"
    episodes.close()


def test_a_single_role_is_one_player_whose_turns_have_labels(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        textwrap.dedent(SLOW).replace("async ", "")
        .replace("max_turns,", "roles, max_turns,").replace("= 2, (0.0", "= (0,), 2, (0.0")
        .replace('"=", 1.0', '"=", 1.0, role=1')
    )  # fmt: skip
    episodes = Episodes(source_of(f"corridor + own={file}:Slow"), [1])
    episodes.reset()
    shown = [episodes.step([0], ["a"])[0] for _ in range(2)]
    assert [(each.role, each.exit, each.truncated) for each in shown] == [
        (1, None, False), (1, None, True),
    ]  # fmt: skip


def test_an_answer_that_is_no_observation_is_named(tmp_path):
    file = tmp_path / "shops.py"
    file.write_text(textwrap.dedent(TOOLS).replace('Observation("=", 1.0)', "None"))
    episodes = Episodes(source_of(f"corridor + own={file}:Shop"), [1])
    episodes.reset()
    assert "gave NoneType instead of an Observation" in episodes.step([0], ["a"])[0].why


def test_a_member_may_be_called_name():
    options = {"name": {"size": 3, "style": "compact"}}
    assert source_of("name=corridor + hidden_number", options).make().members[0].size == 3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("corridor + countdown", {}, "countdown is no environment, and only environments mix"),
        ("corridor + coridor", {}, "coridor is no environment .did you mean 'corridor'"),
        ("corridor + corridor", {}, "two of the name corridor: name them, easy=corridor"),
        ("corridor + calculator", {"calculater": {}}, "did you mean 'calculator'"),
        ("corridor + calculator", {"corridor": 3}, "give each environment its options"),
        ("corridor + open_spiel", {}, "differ in their roles"),
        (
            "corridor + environment:test_action_block:Together",
            {},
            "Together steps many episodes at once",
        ),
    ],
)
def test_mistakes_are_told(name, options, message):
    with pytest.raises(UserError, match=message):
        source_of(name, options).make()


def test_weights_are_one_for_each_environment():
    with pytest.raises(UserError, match="1 numbers for 2 environments"):
        load_task(NAME, weights=[1])
    with pytest.raises(UserError, match="leave them out"):
        load_task("corridor", weights=[1])
    with pytest.raises(UserError, match="or of several environments"):
        config.make({"data": {"task": "corridor", "weights": [1, 2]}}).build()


def test_a_list_of_a_command_or_of_python_is_the_same():
    for given in (["corridor", "easy=hidden_number"], '["corridor", "easy=hidden_number"]', NAME):
        made = config.make({"data": {"task": given, "task_config": {"easy": {"size": 5}}}})
        assert made.data.task == NAME
        assert made.data.task_config == {
            "corridor": {"style": "compact"}, "easy": {"size": 5, "style": "compact"},
        }  # fmt: skip
    with pytest.raises(UserError, match="is no list"):
        config.make({"data": {"task": "[corridor, easy]"}})
    for given in ([], "[]"):
        with pytest.raises(UserError, match=r"data.task = .*: Input should be a valid string"):
            config.make({"data": {"task": given}})


def test_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Strop(monkeypatch, capsys)(
        "train", "grpo", 'data.task=["corridor", "easy=hidden_number"]', "data.weights=[1, 3]",
        "data.train_size=8", "data.validation_size=2", "data.heldout_size=2",
        "training.steps=1", "evaluation.every=1", "evaluation.num_samples=2",
        "sampling.num_prompts=8", "sampling.num_rollouts=2", "--out", "run", "--quiet",
    )  # fmt: skip
    found = last_metrics(tmp_path / "run")
    assert found["sources/corridor/share"] + found["sources/easy/share"] == 1
    assert {"eval/corridor/mean@n", "eval/easy/mean@n"} <= set(found)
