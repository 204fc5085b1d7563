"""Nets that are not being trained: frozen copies, features, rankings."""
