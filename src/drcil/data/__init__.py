"""Images: where they come from, how they are read, how they are augmented."""
