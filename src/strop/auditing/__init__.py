"""Audits a method on a policy small enough to enumerate: exact gradients, bias, variance."""
