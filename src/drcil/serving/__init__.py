"""A model over HTTP: a page for people, endpoints for programs, and guards against both."""
