"""Streams: datasets cut into tasks, with a memory of what came before."""
