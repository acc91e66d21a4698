"""The server: an HTTP interface and a page for one or several runs; see `docs/serving.md`."""
