"""The same job for many architectures under one budget: the textbook's table, measured."""
