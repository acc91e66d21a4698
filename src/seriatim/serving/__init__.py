"""The HTTP server: requests and answers, limits of connections, access, metrics and the OpenAPI document."""
