"""HTTP server for one model: web page, API, access control."""
