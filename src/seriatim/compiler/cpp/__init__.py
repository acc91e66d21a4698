"""C++ code for a program, and the C++ compiler of the machine."""
