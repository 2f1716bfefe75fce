"""A sequence classifier as a reward: the same logits as the model alone, text by text."""

import pytest
import torch
from models import tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification
from transformers.utils.logging import disable_progress_bar

from strop.rewards.grader import Grader
from strop.rewards.model import RewardModel
from strop.rewards.scored import Unscored
from strop.rewards.source import RewardSpec
from strop.support.errors import UserError
from strop.support.exits import Exit

TEMPLATE = "{% for m in messages %}{{ m['role'][0] | length }}:{{ m['content'] }}\n{% endfor %}"


def save(
    folder, template=None, labels=1, kind=Qwen3ForSequenceClassification, pad="<pad>", missing=0
):
    ours = tokenizer()
    ours.chat_template = template
    ours.pad_token = pad
    config = Qwen3Config(
        vocab_size=len(ours) - missing, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=32,
        initializer_range=0.5, num_labels=labels, pad_token_id=None, bos_token_id=None,
        eos_token_id=ours.eos_token_id,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(config)
    disable_progress_bar()
    model.save_pretrained(folder)
    ours.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("model") / "judge-tiny", TEMPLATE)


def alone(folder, text):
    """The classifier's logit for one text, without padding."""
    model = Qwen3ForSequenceClassification.from_pretrained(folder).eval()
    ids = torch.tensor([tokenizer()(text)["input_ids"]])
    with torch.no_grad():
        return model(input_ids=ids).logits.item()


def test_scores_are_the_models_logits_whatever_the_batch(folder):
    prompts = ["1+2=", "3*4=", "7-5=", "1+2=", ""]
    completions = ["3", "12", "(2+0)*1", "4 ", "9"]
    expected = [alone(folder, p + c) for p, c in zip(prompts, completions, strict=True)]
    assert len({round(value, 3) for value in expected}) == 5
    for batch_size in (1, 2, 16):
        scores = RewardModel(str(folder), batch_size=batch_size)(prompts, completions)
        assert scores == pytest.approx(expected, rel=1e-4)


def test_special_tokens_end_a_text_as_in_the_models_training(folder):
    """Such a model reads its score at the end token; messages have what their template writes."""
    reward = RewardModel(str(folder), special_tokens=True)
    end = tokenizer().eos_token
    assert tokenizer()(f"1+2=3{end}")["input_ids"][-1] == tokenizer().eos_token_id
    expected = [alone(folder, f"1+2=3{end}"), alone(folder, f"3*4=12{end}")]
    assert reward(["1+2=", "3*4="], ["3", f"12{end}"]) == pytest.approx(expected, rel=1e-4)
    assert abs(expected[0] - alone(folder, "1+2=3")) > 0.01
    asked = [{"role": "user", "content": "1+2"}], [{"role": "assistant", "content": "3"}]
    plain = RewardModel(str(folder))
    assert reward([asked[0]], [asked[1]]) == plain([asked[0]], [asked[1]])


def test_messages_go_through_the_models_chat_template(folder):
    reward = RewardModel(str(folder))
    prompt, completion = (
        [{"role": "user", "content": "1+2"}],
        [{"role": "assistant", "content": "3"}],
    )
    (score,) = reward([prompt], [completion])
    assert score == pytest.approx(alone(folder, "1:1+2\n1:3\n"), rel=1e-4)


def test_instructions_are_put_where_its_template_shows_them(tmp_path):
    """The policy's template may show a developer's message, and the reward model's none."""
    template = TEMPLATE.replace("{{ m", "{% if m['role'] != 'developer' %}{{ m", 1)
    reward = RewardModel(str(save(tmp_path / "model", template.replace("\n{%", "\n{% endif %}{%"))))
    told = [{"role": "developer", "content": "7"}, {"role": "user", "content": "1+2"}]
    (score,) = reward([told], [[{"role": "assistant", "content": "3"}]])
    assert score == pytest.approx(alone(tmp_path / "model", "1:7\n1:1+2\n1:3\n"), rel=1e-4)


def test_messages_without_a_template_are_refused(tmp_path):
    reward = RewardModel(str(save(tmp_path / "plain")))
    with pytest.raises(UserError, match="has no chat template"):
        reward([[{"role": "user", "content": "1"}]], [[{"role": "assistant", "content": "2"}]])


def test_texts_that_do_not_fit_have_no_score(folder):
    scores = RewardModel(str(folder))(["1" * 20, "1", "", "1" * 31], ["2" * 20, "2", "", "2"])
    assert scores[0] == Unscored("40 tokens, the reward model takes 1 to 32", Exit.UNREADABLE)
    assert scores[2] == Unscored("0 tokens, the reward model takes 1 to 32", Exit.UNREADABLE)
    assert isinstance(scores[1], float)
    assert isinstance(scores[3], float)


def test_a_token_that_the_model_lacks_has_no_score(tmp_path):
    """Its tokenizer is another model's; on a GPU such a token would end the process."""
    last = tokenizer().convert_ids_to_tokens(len(tokenizer()) - 1)
    assert len(last) == 1
    reward = RewardModel(str(save(tmp_path / "short", missing=1)))
    unknown, known = reward(["1+", "1+"], [last, "2"])
    num = len(tokenizer()) - 1
    why = f"token {num}, the reward model has {num}: its tokenizer is another's"
    assert unknown == Unscored(why, Exit.UNREADABLE)
    assert isinstance(known, float)


def test_a_tokenizer_without_padding_pads_with_its_end(tmp_path, folder):
    bare = save(tmp_path / "bare", pad=None)
    scores = RewardModel(str(bare))(["1+2=", "3"], ["3", "45"])
    assert scores == pytest.approx([alone(folder, "1+2=3"), alone(folder, "345")], rel=1e-4)


def test_in_the_grader_by_its_source(folder):
    source = f"model:{folder}(batch_size=2)"
    with Grader([RewardSpec("judge-tiny", source)]) as grader:
        grades = grader.grade(["1+2=", "1" * 40], ["3", "4"], [[1]] * 2, {})
    assert grader.specs[0].rows_are_independent
    assert grades.scored_B.tolist() == [True, False]
    assert grades.scores_BM[0, 0] == pytest.approx(alone(folder, "1+2=3"), rel=1e-4)
    assert "41 tokens" in grades.failures[0].message


def test_models_that_are_no_reward_models(tmp_path):
    with pytest.raises(UserError, match="has 3 labels: give a model with one"):
        RewardModel(str(save(tmp_path / "three", labels=3)))
    with pytest.raises(UserError, match=r"no weights for score\.weight"):
        RewardModel(str(save(tmp_path / "causal", kind=Qwen3ForCausalLM)))
    with pytest.raises(UserError, match=r"the folder has no config\.json"):
        RewardModel(str(tmp_path))
    with pytest.raises(UserError, match=r"no reward model 'no/such': .* Give a folder or a name"):
        RewardModel("no/such")
    with pytest.raises(UserError, match="dtype 'float31' is unknown"):
        RewardModel(str(tmp_path / "three"), dtype="float31")
    for name, value in (("batch_size", 0), ("batch_size", "x"), ("timeout_seconds", "1"),
                        ("timeout_seconds", 0), ("timeout_seconds", True),
                        ("special_tokens", "x")):  # fmt: skip
        with pytest.raises(UserError, match=f"with {name}={value!r}: make it"):
            RewardModel(str(tmp_path / "three"), **{name: value})
    for device in ("gpu", "privateuseone"):  # the latter is known and not there
        with pytest.raises(UserError, match="cannot load the reward model"):
            RewardModel(str(tmp_path / "three"), device=device)


def test_answers_in_letters_that_the_model_does_not_know_are_refused(folder):
    """All of them are the same tokens, so that it would score them alike."""
    reward, unknown = RewardModel(str(folder)), tokenizer().unk_token
    with pytest.raises(UserError, match=f"would read all letters of 'äö' as {unknown}"):
        reward(["1+2=", "2+3="], ["äö", "ü"])
    with pytest.raises(UserError, match="all letters of 'ä ö'"):  # before step 1: empty answers
        reward(["ä ö", "ü"], ["", ""])
    assert len(set(reward(["1+2=", "2+3="], ["3", "ü"]))) == 2
    assert len(reward(["1+2="], ["ü"])) == 1  # later ones may be of such letters alone
