"""Corpora and their representation: readers, tokenizers, encoded text, batches."""
