"""Many runs: comparisons, and the processes that carry them out."""
