"""Further factors on a token's advantage."""
