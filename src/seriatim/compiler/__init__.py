"""Compiler for recurrent steps: traces a step, verifies it, differentiates it, plans it, and emits C++ or Triton."""
