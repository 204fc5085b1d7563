"""Models: the directory format, and reading what others published."""
