"""The example of docs/COMING_FROM_TRL_AND_VERL.md runs as it stands, on a smaller model."""

import re
from pathlib import Path

import pytest
from models import Lab
from trainers import QUIET

PAGE = Path(__file__).parents[2] / "docs/COMING_FROM_TRL_AND_VERL.md"
pytestmark = pytest.mark.filterwarnings(QUIET, "ignore:the recipe.s num_")


def test_example(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    example = re.search(r"<!-- file: in_trl.py -->\n```python\n(.*?)```", text, re.S)
    assert example is not None
    code = example.group(1).replace("Qwen/Qwen3-0.6B", str(lab.model))
    here = "max_steps=2, max_completion_length=4, report_to=[], use_cpu=True, bf16=False"
    code = code.replace("max_steps=10", f"{here}, activation_checkpointing=False")
    monkeypatch.chdir(tmp_path)
    ran: dict[str, object] = {}
    exec(compile(code, "in_trl.py", "exec"), ran)
    assert ran["trainer"].state.global_step == 2  # type: ignore[attr-defined]
    assert (tmp_path / "out/checkpoint-2/strop_state.pt").exists()
