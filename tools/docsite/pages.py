"""The order of the written pages, and their headings."""

from pathlib import Path

# A heading, and pages of docs/ under it; pages not named here end "Guide" or "Evidence".
WRITTEN: dict[str, tuple[str, ...]] = {
    "Tutorials": (
        "notebooks/train_on_your_own_task.md", "notebooks/write_and_compare_a_method.md",
    ),
    "Guide": (
        "README.md", "PYTHON.md", "EXTENDING.md", "TERMINAL.md", "REWARDS.md",
        "GIVEN_ANSWERS.md", "DISTILLATION.md", "DATA.md", "TRACES.md", "ENVIRONMENTS.md",
        "TOOLS.md", "OTHER_ENVIRONMENTS.md", "SEVERAL_POLICIES.md", "AGENTS.md", "MODELS.md",
        "RUN_ON_A_REAL_MODEL.md", "LABORATORY.md",
    ),
    "Look and compare": (
        "RUN_FOLDER.md", "TRACKING.md", "INSPECT.md", "COMPARE.md", "SEQUENCES.md", "AUDIT.md",
        "ATLAS.md",
    ),
    "Scale": (
        "ENGINES.md", "SERVING.md", "SCALE.md", "STALENESS.md", "SAMPLING_MASKS.md", "PLAN.md",
    ),
    "Other libraries": ("COMING_FROM_TRL_AND_VERL.md", "TINKER.md", "HOSTED.md"),
    "Reference": ("NOTATION.md", "METRICS.md", "BATCH.md", "PADDED.md", "UNIFIED_ESTIMATOR.md",
                  "WITHOUT_A_RECIPE.md"),
    "Evidence": (
        "evidence/every_recipe_learns.md", "evidence/entropy_on_the_tiny_model.md",
        "evidence/credit_on_small_tasks.md", "evidence/policy_on_small_tasks.md",
        "evidence/rollouts_and_draws.md", "evidence/worked_answers.md", "evidence/strategies.md",
        "evidence/forgetting.md", "evidence/engine.md", "evidence/speed_of_parts.md",
        "evidence/step_profile.md",
        "evidence/shared_prefixes.md", "evidence/growth.md", "evidence/gpu.md",
        "evidence/term_conflict.md",
        "evidence/mutants.md", "LOG.md",
    ),
}  # fmt: skip
# These lead to the pages of recipes and parts.
INDEXES = ("METHODS.md", "PARTS.md")


def placed(docs: Path) -> dict[str, list[str]]:
    """The pages of the folder under their headings."""
    found = {head: [n for n in names if _is_there(docs / n)] for head, names in WRITTEN.items()}
    known = {name for names in WRITTEN.values() for name in names} | {*INDEXES}
    for path in sorted(docs.rglob("*.md")):
        name = path.relative_to(docs).as_posix()
        if name not in known and path.parent.name != "methods":
            found["Evidence" if path.parent.name == "evidence" else "Guide"].append(name)
    return found


def _is_there(path: Path) -> bool:
    return path.exists() or path.with_suffix(".ipynb").exists()
