// toml++'s functions for a program that is linked without its shared library.
#define TOML_IMPLEMENTATION
#include <toml++/toml.h>
