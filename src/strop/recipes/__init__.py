"""Published methods by name, each a composition of parts."""
