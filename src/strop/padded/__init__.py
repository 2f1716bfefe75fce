"""What stands behind `strop.functional`: padded tensors in and out."""
