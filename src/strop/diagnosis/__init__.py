"""What `strop doctor` looks at, a file each: machine, model, data and runs."""
