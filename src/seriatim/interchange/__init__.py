"""Models from elsewhere in, and out to elsewhere."""
