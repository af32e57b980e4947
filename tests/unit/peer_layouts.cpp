// Long layouts in shared memory for other processes: when they are published, how much memory that takes, and that what
// is read is what was published.
#include "interpose/shared/layout_exchange.hpp"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "datatype/decode.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/index_list.hpp"
#include "tests/support/owned_type.hpp"

namespace {

constexpr std::uint64_t plenty = std::uint64_t{20} << 30;
std::uint64_t left_bytes = plenty;

}  // namespace

/// What is left of the node's shared memory, as the segment is told.
extern "C" int fstatvfs(int, struct statvfs* status) noexcept {
  *status = {};
  status->f_frsize = 4096;
  status->f_blocks = plenty / status->f_frsize;
  status->f_bavail = left_bytes / status->f_frsize;
  return 0;
}

namespace gpudt::interpose::peer {
namespace {

constexpr std::size_t any_effort = std::size_t{1} << 30;

datatype::LayoutRef list_of(int runs, int seed) {
  const test::IndexList list = test::patternless_list(runs, seed);
  test::OwnedType type = test::indexed(list.lengths, list.places, MPI_DOUBLE);
  return datatype::decode(type.commit());
}

/// Bytes of memory of the shared files that this process has open.
std::int64_t shared_memory() {
  std::int64_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string name = std::filesystem::read_symlink(file, gone).string();
    struct stat status;
    if (!gone && name.starts_with("/dev/shm/") && stat(file.path().c_str(), &status) == 0)
      bytes += 512 * status.st_blocks;
  }
  return bytes;
}

/// A job of its own: this process's segment in a job stays until it ends.
std::string another_job() {
  static int jobs = 0;
  return "layouts" + std::to_string(getpid()) + "." + std::to_string(++jobs);
}

/// A process that sends, with its segment.
struct Sender {
  bool publishes(const datatype::LayoutRef& layout, std::size_t effort = any_effort) {
    published.reset();
    return layouts.describe(*segment, descriptor, data(), descriptor.from, layout, effort, published);
  }
  std::span<std::byte> data() const { return (*segment)->data_of(descriptor); }
  std::int64_t memory() const { return shared_memory() - bare; }

  std::unique_ptr<Segment> segment = Segment::create(another_job(), 0);
  std::int64_t bare = shared_memory();
  Descriptor& descriptor = (*segment)->descriptors[0];
  Layouts layouts;
  PublishedRef published;
};

TEST_CASE("a long layout is published when its messages have earned it", "[datatype]") {
  Sender sender;
  const datatype::LayoutRef list = list_of(5000, 0);
  const std::size_t messages = list->bytes() / published_by_message + 1;
  for (std::size_t message = 1; message < messages; ++message)
    CHECK_FALSE(sender.publishes(list, published_by_message));
  CHECK(sender.memory() == 0);
  for (int again = 0; again < 3; ++again) CHECK(sender.publishes(list, published_by_message));
  CHECK(sender.memory() >= static_cast<std::int64_t>(list->bytes()));
}

TEST_CASE("what a receiver reads is what was published", "[datatype]") {
  Sender sender;
  Layouts receiver;
  const Descriptor& descriptor = sender.descriptor;
  for (const int runs : {700, 780000, 3000}) {
    const datatype::LayoutRef list = list_of(runs, 1);
    REQUIRE(sender.publishes(list));
    const datatype::LayoutRef read = receiver.find(*sender.segment, descriptor.from.layout, sender.data());
    REQUIRE(read);
    CHECK(read->to_bytes() == list->to_bytes());
    CHECK(receiver.find(*sender.segment, descriptor.from.layout, sender.data()) == read);
  }
  CHECK_FALSE(sender.publishes(list_of(800000, 1)));  // longer than a slot
}

TEST_CASE("long layouts make room for others, and take no more memory than they may", "[datatype]") {
  Sender sender;
  std::vector<datatype::LayoutRef> lists;
  for (int seed = 0; seed < layout_slots + 2; ++seed) {
    lists.push_back(list_of(140000, seed));
    CHECK(sender.publishes(lists.back()));
    CHECK(sender.memory() <= layout_memory + (1 << 20));  // of pages
  }
  CHECK(sender.publishes(lists.back(), 0));         // it is there
  CHECK_FALSE(sender.publishes(lists.front(), 0));  // not any more
  CHECK(sender.publishes(lists.front()));
  for (const int runs : {190000, 780000, 600000, 600, 780000}) {
    CHECK(sender.publishes(list_of(runs, 99)));
    CHECK(sender.memory() <= layout_memory + (1 << 20));
  }
}

TEST_CASE("a layout that somebody may be reading stays", "[datatype]") {
  Sender sender;
  std::vector<PublishedRef> held;
  std::vector<datatype::LayoutRef> lists;
  for (int seed = 0; seed < layout_slots; ++seed) {
    lists.push_back(list_of(600, seed));
    CHECK(sender.publishes(lists.back()));
    held.push_back(sender.published);
  }
  const datatype::LayoutRef another = list_of(600, 99);
  CHECK_FALSE(sender.publishes(another));
  for (const datatype::LayoutRef& list : lists) CHECK(sender.publishes(list, 0));
  held.clear();
  CHECK(sender.publishes(another));
}

TEST_CASE("a long layout takes no more than half of the shared memory that is left", "[datatype]") {
  Sender sender;
  const datatype::LayoutRef list = list_of(700000, 0), less = list_of(6000, 1);
  left_bytes = 20 << 20;
  CHECK_FALSE(sender.publishes(list));
  CHECK(sender.memory() == 0);
  CHECK(sender.publishes(less));
  left_bytes = plenty;
  CHECK(sender.publishes(list));
}

}  // namespace
}  // namespace gpudt::interpose::peer
