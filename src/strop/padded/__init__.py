"""Implements `strop.functional`: padded tensors in and out."""
