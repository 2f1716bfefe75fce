"""Lists the kinds of part, the parts and the recipes, without importing them."""
