"""What a method does to a policy small enough to enumerate: exact gradients, bias, variance."""
