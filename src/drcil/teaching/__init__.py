"""A model that people keep and teach: what it learns next, and how it changes on disk."""
