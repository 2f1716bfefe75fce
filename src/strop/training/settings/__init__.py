"""The settings of a run: sections of one TOML file, and the method they name."""
