"""What the trainer offers to parts: one file for each protocol of `strop.services`."""
