"""Families of checkpoints of the ``transformers`` library, one file each."""
