// As base/precompiled.hpp, for tests.
#include <cstdlib>
#include <random>
#include <sstream>

#include "base/precompiled.hpp"
#include "tests/support/catch.hpp"
