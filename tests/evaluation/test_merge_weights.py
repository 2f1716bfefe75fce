import pytest
import torch
from models import save_model
from safetensors import SafetensorError

from strop import _writing
from strop.errors import RunStopped, UserError
from strop.evaluation import merge_weights
from strop.evaluation.merge_weights import average, by_inverse_loss, greedy, read, write
from strop.training.models import load


def model(*values):
    return {"w": torch.tensor(values), "b": torch.tensor([values[0]])}


def test_averages():
    one, two = model(1.0, 2.0), model(3.0, 6.0)
    assert average([one, two])["w"].tolist() == [2, 4]
    assert average([one, two], [3, 1])["w"].tolist() == [1.5, 3]
    assert by_inverse_loss([one, two], [1.0, 3.0])["b"].tolist() == [1.5]
    assert average([one])["w"].equal(one["w"])
    for call in (
        lambda: average([]),
        lambda: average([one, two], [1, -1]),
        lambda: average([one, {"w": torch.zeros(3), "b": torch.zeros(1)}]),
        lambda: by_inverse_loss([one], [0.0]),
    ):
        with pytest.raises(UserError):
            call()


def test_greedy_keeps_what_helps():
    models = [model(0.0, 0.0), model(4.0, 0.0), model(1.0, 0.0)]
    merged, taken = greedy(models, lambda w: -abs(float(w["w"][0]) - 1.5))
    # 1 is best alone; with 0 it is .5, worse; with 4 it is 2.5, worse
    assert taken == [2]
    merged, taken = greedy(models, lambda w: -abs(float(w["w"][0]) - 2.4))
    assert taken == [2, 1]
    assert merged["w"].tolist() == [2.5, 0]


def test_a_merged_checkpoint_loads(tmp_path):
    folders = [save_model(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    place = write(average([read(f) for f in folders]), folders[0], tmp_path / "merged")
    merged, parents = load(str(place)).model, [load(str(f)).model for f in folders]
    for name, weight in merged.state_dict().items():
        mean = sum(p.state_dict()[name] for p in parents) / 2
        torch.testing.assert_close(weight, mean)
    with pytest.raises(UserError, match="there already"):
        write({}, folders[0], place)
    with pytest.raises(UserError, match=r"no model\.safetensors"):
        read(tmp_path)


def test_a_full_disk_leaves_no_half_of_a_model(tmp_path, monkeypatch):
    folder = save_model(tmp_path / "one")
    weights = average([read(folder)])
    with monkeypatch.context() as patch:
        patch.setattr(_writing, "free_bytes", lambda _: 7)
        with pytest.raises(RunStopped, match=r"the model merged could not .*: no room, 7 bytes"):
            write(weights, folder, tmp_path / "merged")

    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(merge_weights, "save_file", full)
        with pytest.raises(RunStopped, match="the model merged could not be written"):
            write(weights, folder, tmp_path / "merged")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"]
    write(weights, folder, tmp_path / "merged")
