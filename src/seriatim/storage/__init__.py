"""Files: written atomically, read safely, cached, locked, and checked."""
