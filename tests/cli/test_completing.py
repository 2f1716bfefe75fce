"""The completions of the tab key, requested as the shells' scripts request them."""

import subprocess
import sys

import pytest

from strop.catalogue import catalogue
from strop.cli import completing
from strop.training.settings import config


@pytest.fixture
def offered(strop, monkeypatch):
    """`offered("strop train gr")`: the words that bash gets for the last one."""

    def ask(line):
        words = line.split(" ")
        monkeypatch.setenv("_STROP_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        found = strop()
        assert found.code == 0
        return found.out.split()

    return ask


def test_commands_recipes_parts_and_options(offered):
    assert offered("strop tr") == ["train"]
    assert {"grpo", "gspo"} <= set(offered("strop train g"))
    assert offered("strop recipes mc_g") == ["mc_grpo"]
    assert offered("strop train --tra") == ["--track"]
    assert offered("strop train --track w") == ["wandb"]
    assert offered("strop train --model tiny-") == ["tiny-worked"]
    assert offered("strop train --task corr") == ["corridor"]
    assert "subtract_group_median" in offered("strop parts subtract_group")
    assert "loss/bound" in offered("strop parts loss/")
    assert offered("strop train grpo training.keep_c") == ["training.keep_checkpoints="]
    assert offered("strop compare grpo rlo") == ["rloo"]
    assert offered("strop init pre") == ["preferences"]
    assert offered("strop sample sh") == []  # the shell offers files


def test_bash_itself_completes(tmp_path):
    """With typer's script, and a program of the name."""
    program = tmp_path / "strop"
    program.write_text(f"#!{sys.executable}\nfrom strop.cli.main import main\n\nmain()\n")
    program.chmod(0o755)
    script = f"""
PATH={tmp_path}:$PATH
eval "$(_STROP_COMPLETE=source_bash strop)"
COMP_WORDS=(strop recipes mc_g); COMP_CWORD=2
_strop_completion strop mc_g recipes
echo "${{COMPREPLY[@]}}"
complete -p strop
"""
    found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert found.stdout.splitlines()[0].split() == ["mc_grpo"], found.stderr
    assert "_strop_completion" in found.stdout


def test_every_setting_is_offered_with_its_words():
    found = dict(completing.options(""))
    for path, told in config.settings().items():
        if path not in config.METHOD:
            assert f"{path}=" in found
            assert path.startswith("engine.") or found[f"{path}="] == told


def test_values():
    words = [word for word, _ in completing.options("engine.kind=")]
    assert {"engine.kind=local", "engine.kind=vllm", "engine.kind=completions"} <= set(words)
    booleans = completing.options("model.gradient_checkpointing=t")
    assert booleans == [("model.gradient_checkpointing=true", "")]
    assert ("recipe=grpo", "reward against its group's mean") in completing.options("recipe=grp")
    names = [word for word, _ in completing.options("bound=clip_b")]
    assert names == ["bound=clip_both_sides"]
    assert completing.options("training.lr=") == []
    assert "loss.clip_high=" in dict(completing.options("loss.clip"))
    assert "rollout.max_tokens=" in dict(completing.options("rollout.max"))


def test_every_part_can_be_found():
    assert {entry.name for entry in catalogue.parts()} <= {word for word, _ in completing.parts("")}


def test_a_key_press_does_not_wait_for_torch():
    script = (
        "import sys\nfrom strop.cli import completing\n"
        "completing.methods('gr'), completing.options('bound='), completing.tasks('')\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
