// Threads of the library that leave the one CPU to which the program's thread is bound.
#include "interpose/streams/single_cpu.hpp"

#include <thread>
#include <vector>

#include "tests/support/catch.hpp"

using namespace gpudt::interpose;

namespace {

std::vector<int> numbers(const cpu_set_t& cpus) {
  std::vector<int> all;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(static_cast<unsigned>(cpu), &cpus)) all.push_back(cpu);
  return all;
}

cpu_set_t own_cpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  sched_getaffinity(0, sizeof cpus, &cpus);
  return cpus;
}

}  // namespace

TEST_CASE("single CPU: lists of CPUs", "[device]") {
  CHECK(numbers(cpus_of("0-3,8,10-11\n")) == std::vector<int>{0, 1, 2, 3, 8, 10, 11});
  CHECK(numbers(cpus_of("5")) == std::vector<int>{5});
  CHECK(numbers(cpus_of("")).empty());
  CHECK(numbers(cpus_of("x,2,3-,-1,99999")) == std::vector<int>{2});
}

TEST_CASE("single CPU: a thread that is bound to it may run on others", "[device]") {
  const std::vector<int> allowed = numbers(own_cpus());
  if (allowed.size() < 2) return;  // there is no other
  std::vector<int> after;
  std::thread([&] {
    cpu_set_t one = {};
    CPU_SET(static_cast<unsigned>(allowed.back()), &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    leave_single_cpu();
    after = numbers(own_cpus());
  }).join();
  CHECK(after.size() > 1);
}

TEST_CASE("single CPU: a thread with several CPUs keeps them", "[device]") {
  const std::vector<int> allowed = numbers(own_cpus());
  if (allowed.size() < 2) return;  // there is no other
  std::vector<int> before, after;
  std::thread([&] {
    cpu_set_t two = {};
    CPU_SET(static_cast<unsigned>(allowed[0]), &two);
    CPU_SET(static_cast<unsigned>(allowed[1]), &two);
    REQUIRE(sched_setaffinity(0, sizeof two, &two) == 0);
    before = numbers(own_cpus());
    leave_single_cpu();
    after = numbers(own_cpus());
  }).join();
  CHECK(after == before);
}
