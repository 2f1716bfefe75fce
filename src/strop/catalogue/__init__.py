"""Which kinds of part, parts and recipes there are, read without importing them."""
