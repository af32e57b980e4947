#include "tests/support/catch_session.hpp"

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

namespace gpudt::test {

int run_catch(int argc, const char* const* argv) {
  return Catch::Session().run(argc, argv);
}

}  // namespace gpudt::test
