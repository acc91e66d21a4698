"""The kit for pages: the page itself, its theme, axes and number formats."""
