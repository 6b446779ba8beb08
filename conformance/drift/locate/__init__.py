"""Finding code by meaning, in Python (`python`), in C++ that parses (`cxx_tree`) and in C++ that does not (`cxx`)."""
