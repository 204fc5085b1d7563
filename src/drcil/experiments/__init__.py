"""Many runs: comparisons, the paper's tables and figures, reports."""
