"""The parts, one idea a file, in one folder a kind."""
