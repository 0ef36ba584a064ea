"""A mergeable sketch of rows, and the stream that maintains one."""
