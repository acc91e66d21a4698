"""From a step to compiled code: traced, verified, differentiated, scheduled, and written as C++ or Triton."""
