"""What a model attends to, keeps and forgets: recorded by hooks, drawn as figures, put together as one page."""
