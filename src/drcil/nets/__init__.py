"""Nets: backbones that turn images into features, and what joins them to heads. ``nets.build`` makes them by name."""
