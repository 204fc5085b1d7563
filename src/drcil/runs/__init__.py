"""Runs and models on disk."""
