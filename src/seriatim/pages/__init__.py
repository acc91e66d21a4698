"""The kit for pages: the page itself, its theme, charts, axes and number formats."""
