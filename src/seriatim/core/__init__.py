"""The contract: layer classes, states and lengths, and what every part of the package shares."""
