// Catch2's session. Of Catch2 v2 catch_session.cpp contains all that is not in macros, which takes longer to compile
// than any test: once for all programs.
#pragma once

namespace gpudt::test {

/// Runs the test cases that the command line selects; 0 if all passed.
int run_catch(int argc, const char* const* argv);

}  // namespace gpudt::test
