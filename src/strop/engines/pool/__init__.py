"""Several engines behind the interface of one."""
