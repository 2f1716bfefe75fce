import math

import pytest
import torch
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeEpisodes, FakeSampling, FakeServices, FakeTexts, rolled_out

from strop.method.part import Draw
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.parts.rollout.sample_two_attempts import WORDS, SampleTwoAttempts

# Token 0 ends; 1 is usually followed by 2, 2 by 1; after the word 3 comes 1, mostly.
TABLE = {0: (1, 0, 0, 0), 1: (0.3, 0.1, 0.6, 0), 2: (0.2, 0.7, 0.1, 0), 3: (0.1, 0.8, 0.1, 0)}
TEXTS = FakeTexts({5: (1,), 9: (2, 1), 7: (2, 1, 3)}, pieces={0: "", 1: "a", 2: "b", 3: "?"})
DRAWS = (Draw(5, 3), Draw(9, 2))


def sampled(part, context=100, draws=DRAWS, table=TABLE, services=None):
    services = services or services_of(context)
    rng = torch.Generator().manual_seed(2)
    engine = TableEngine(by_last_token(table), context_length=context)
    return rolled_out(part, draws, engine, services, rng).batch


def services_of(context=100):
    return FakeServices(
        TEXTS, sampling=FakeSampling(answer_tokens=5, context_tokens=context),
        episodes=FakeEpisodes(letters={"a": 1, "b": 2, "?": 3}),
    )  # fmt: skip


def rows_of(batch, column="id_T"):
    return [a.tolist() for a in torch.split(batch[column], batch["size_B"].tolist())]


def test_the_words_are_such_as_the_model_can_read():
    def said(letters):
        texts = FakeTexts({5: (1,)}, pieces={0: "", 1: "a", **dict(enumerate(letters, 2))})
        services = FakeServices(
            texts, sampling=FakeSampling(answer_tokens=5),
            episodes=FakeEpisodes(letters=dict.fromkeys("".join(WORDS) + "a", 1)),
        )  # fmt: skip
        sampled(SampleTwoAttempts(), draws=(Draw(5, 1),), services=services)
        return services.episodes.said[0][0]

    assert said("\n") == "\na"
    assert said(sorted(set(WORDS[0]) - set("{}a"))) == WORDS[0].replace("{prompt}", "a")
    assert "mistake" in WORDS[0]


def test_the_second_attempt_begins_with_the_first_and_the_words():
    services = services_of()
    batch = sampled(SampleTwoAttempts(words="?{prompt}?"), services=services)
    assert batch["stage_B"].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert batch["group_B"].tolist() == [0] * 6 + [1] * 4
    ids, mask = rows_of(batch), rows_of(batch, "mask_T")
    logp, keys = rows_of(batch, "logp_behavior_T"), batch["conversation_B"].tolist()
    prompts = {0: [1], 1: [2, 1]}
    for row, stage in enumerate(batch["stage_B"].tolist()):
        prompt = prompts[int(batch["group_B"][row])]
        given = prompt
        if stage:
            (one,) = [r for r in range(row) if keys[r] == keys[row]]
            assert int(batch["stage_B"][one]) == 0
            given = [*ids[one], 3, *prompt, 3]
        assert ids[row][: len(given)] == given
        assert mask[row] == [False] * len(given) + [True] * (len(ids[row]) - len(given))
        assert 1 <= int(batch["length_B"][row]) <= 5
        for place in range(len(given), len(ids[row])):
            drawn = TABLE[ids[row][place - 1]][ids[row][place]]
            assert logp[row][place] == pytest.approx(math.log(drawn), abs=1e-5)
    firsts = [own for own, n in zip(ids, batch["stage_B"].tolist(), strict=True) if n == 0]
    assert services.episodes.said == [
        (words, own[-1]) for own, words in zip(firsts, ["?a?"] * 3 + ["?ba?"] * 2, strict=True)
    ]
    assert len(set(batch["rollout_uid_B"].tolist())) == 10
    assert batch["version_T"][batch["mask_T"]].eq(0).all()


def test_a_failed_first_attempt_stays_alone():
    # no token can be drawn after a 3, so there is none of an answer to prompt 7
    services, draws = services_of(), (Draw(7, 2), Draw(5, 1))
    part, table = SampleTwoAttempts(words="b"), {**TABLE, 3: (0, 0, 0, 0)}
    batch = sampled(part, draws=draws, table=table, services=services)
    assert batch["stage_B"].tolist() == [0, 0, 0, 1]
    assert batch["group_B"].tolist() == [0, 0, 1, 1]
    assert batch["length_B"][:2].tolist() == [0, 0]
    assert services.episodes.said[:2] == [("b", 3)] * 2  # words after the prompt alone


def test_the_first_attempts_are_plain_samples():
    ours = sampled(SampleTwoAttempts(words="?"))
    theirs = sampled(SampleIndependently())
    ours = ours.keep(ours["stage_B"] == 0)
    for name in theirs.columns:
        assert ours[name].equal(theirs[name]), name


def test_without_room_there_is_no_second_attempt():
    batch = sampled(SampleTwoAttempts(words="???"), context=8)
    keys, sizes = batch["conversation_B"].tolist(), batch["size_B"].tolist()
    for row, stage in enumerate(batch["stage_B"].tolist()):
        if stage == 0:
            assert (keys.count(keys[row]) == 2) == (sizes[row] + 3 < 8)
    assert max(sizes) <= 8
    assert {keys.count(key) for key in keys} == {1, 2}
