"""The command line: its parser, its verbs and what they print."""
