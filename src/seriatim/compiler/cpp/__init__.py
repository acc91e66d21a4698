"""Programs as C++, and the compiler of the machine."""
