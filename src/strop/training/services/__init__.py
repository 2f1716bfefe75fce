"""The trainer's services for parts: one file for each protocol of `strop.method.services`."""
