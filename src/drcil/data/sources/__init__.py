"""Where images come from: in memory or on disk, by row."""
