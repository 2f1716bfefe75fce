"""Makes new weights: the learner, column refresh, the loop and its checkpoints."""
