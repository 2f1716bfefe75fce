"""Writes `objective_T` from the ratio and the advantage: clip, gate or soften."""
