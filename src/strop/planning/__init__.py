"""What a run would yield on other numbers of workers: costs measured in it, and a simulation."""
