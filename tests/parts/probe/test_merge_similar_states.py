import pytest
import torch

from strop.batch.batch import Batch
from strop.method import notation
from strop.parts.probe.merge_similar_states import MergeSimilarStates
from strop.support.errors import UserError

# One turn a rollout: observations of twenty tokens that differ in none, one, two or all of them.
BASE = list(range(20))
ONE, TWO, OTHER = [99, *BASE[1:]], [98, 97, *BASE[2:]], [50 + i for i in BASE]


def merged(observations, states, groups, threshold=0.95):
    num = len(observations)
    sizes = torch.tensor([len(each) + 1 for each in observations])
    tokens = [id for each in observations for id in (*each, 7)]
    ends = sizes.cumsum(0) - 1
    batch = Batch(
        {
            "turn_T": torch.arange(num).repeat_interleave(sizes), "id_T": torch.tensor(tokens),
            "mask_T": torch.isin(torch.arange(int(sizes.sum())), ends),
            "rollout_K": torch.arange(num), "group_B": torch.tensor(groups),
            "uid_P": torch.arange(2), "draw_P": torch.zeros(2), "state_K": torch.tensor(states),
        }
    )  # fmt: skip
    part = MergeSimilarStates(threshold)
    return part(batch, batch["state_K"], batch["group_K"]).tolist()


def test_observations_that_differ_in_a_token_of_twenty_are_the_same():
    shown = [BASE, ONE, TWO, OTHER, BASE]
    assert merged(shown, [1, 2, 3, 4, 5], [0] * 5) == [1, 1, 3, 4, 1]
    assert merged(shown, [1, 2, 3, 4, 5], [0] * 5, 0.9) == [1, 1, 1, 4, 1]
    assert merged(shown, [1, 2, 3, 4, 5], [0] * 5, 1.0) == [1, 2, 3, 4, 1]


def test_a_cluster_is_what_is_like_its_first_member():
    # TWO is like ONE (18 tokens in common are too few, 0.9) and neither chains through the other
    assert merged([ONE, BASE, TWO], [1, 2, 3], [0] * 3) == [1, 1, 3]
    assert merged([BASE, TWO, ONE], [1, 2, 3], [0] * 3, 0.95) == [1, 2, 1]


def test_prompts_are_kept_apart_and_equal_states_join_whatever_is_shown():
    assert merged([BASE, BASE, ONE], [1, 2, 3], [0, 1, 1]) == [1, 2, 2]
    assert merged([BASE, OTHER], [1, 1], [0, 0]) == [1, 1]


def test_off_by_default_and_checked():
    assert notation.build_recipe("gigpo", {}).probes == ()
    (use,) = notation.build_recipe("gigpo", {"similarity_threshold": 0.9}).probes
    assert use.part == MergeSimilarStates(0.9)
    with pytest.raises(UserError, match="threshold must be between 0"):
        MergeSimilarStates(1.5)
