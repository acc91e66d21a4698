"""Triton kernels for a program."""
