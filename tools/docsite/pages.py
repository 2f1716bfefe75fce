"""Which pages the site has and in which order: the written ones by hand, the others by the code."""

# A heading, and the pages of docs/ under it. A test sees to it that none is missing.
WRITTEN: dict[str, tuple[str, ...]] = {
    "Tutorials": (
        "notebooks/train_on_your_own_task.md", "notebooks/write_and_compare_a_method.md",
    ),
    "Guide": (
        "README.md", "PYTHON.md", "TERMINAL.md", "REWARDS.md", "GIVEN_ANSWERS.md",
        "ENVIRONMENTS.md", "MODELS.md", "RUN_ON_A_REAL_MODEL.md", "LABORATORY.md",
    ),
    "Catalogue": (
        "METHODS.md", "PARTS.md", "methods/baselines.md", "methods/credit.md", "methods/critics.md",
        "methods/demonstrations.md", "methods/draws.md", "methods/entropy.md", "methods/ratios.md",
        "methods/rewards.md", "methods/staleness.md", "methods/turns.md",
    ),
    "Look and compare": (
        "RUN_FOLDER.md", "TRACKING.md", "INSPECT.md", "COMPARE.md", "AUDIT.md",
    ),
    "Scale": ("ENGINES.md", "SCALE.md", "STALENESS.md", "PLAN.md"),
    "Other libraries": ("COMING_FROM_TRL_AND_VERL.md", "HOSTED.md"),
    "Reference": ("NOTATION.md", "METRICS.md", "BATCH.md", "UNIFIED_ESTIMATOR.md"),
    "Evidence": (
        "evidence/every_recipe_learns.md", "evidence/entropy_on_the_tiny_model.md",
        "evidence/credit_on_small_tasks.md", "evidence/policy_on_small_tasks.md",
        "evidence/rollouts_and_draws.md", "evidence/worked_answers.md", "evidence/strategies.md",
        "evidence/engine.md", "evidence/speed_of_parts.md", "evidence/step_profile.md",
        "evidence/shared_prefixes.md", "evidence/growth.md", "evidence/gpu.md", "LOG.md",
    ),
}  # fmt: skip
