"""Looking at images through nets that are not being trained."""
