// Memory that is mapped in pieces (cuMemCreate) with file descriptors as handles: how it is exported, passed on and
// mapped, and what happens when pieces come and go.
#include <dirent.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/peer_pair.hpp"

namespace {

using namespace gpudt::test;

int open_files() {
  DIR* const folder = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

/// Whether so many files are open, once the exporter's thread has closed what it has passed on.
bool opens(int count) {
  for (int i = 0; i < 1000 && open_files() != count; ++i) usleep(10000);
  return open_files() == count;
}

struct PiecesPair : Telling {
  static constexpr std::uint64_t piece = 16 * page;
  /// Maps pieces number first to last - 1 at the exporter.
  void map_at_exporter(std::uint64_t first, std::uint64_t last, int ordinal = 1) {
    for (std::uint64_t i = first; i < last; ++i) theirs.map_piece(i * piece, piece, ordinal);
  }
  Exported pieces_at(std::uint64_t address, std::uint64_t bytes = 1) {
    Exported made = {};
    REQUIRE(exporter.export_memory(0, gpu, reinterpret_cast<void*>(address), made, all_importers, bytes));
    return made;
  }
};

TEST_CASE("pieces: neighbours are one export and one mapping", "[device]") {
  PiecesPair pair;
  pair.map_at_exporter(2, 6);
  pair.map_at_exporter(7, 8);     // apart
  pair.map_at_exporter(6, 7, 0);  // of another GPU
  const int files = open_files();
  const Exported made = pair.pieces_at(3 * PiecesPair::piece + 5);
  CHECK(made.base == 2 * PiecesPair::piece);
  CHECK(made.size == 4 * PiecesPair::piece);
  CHECK(made.pieces == 4);
  CHECK(made.slot >= 0);
  const Exported again = pair.pieces_at(5 * PiecesPair::piece);
  CHECK(std::memcmp(&made, &again, sizeof made) == 0);
  CHECK(pair.pieces_at(7 * PiecesPair::piece).pieces == 1);
  {
    const Mapping mapping = pair.import(made);
    REQUIRE(mapping);
    CHECK(pair.theirs.shared.size() == 4);
    CHECK(pair.import(again).at(made.base) == mapping.at(made.base));
    CHECK(pair.ours.opens == 1);
  }
  CHECK(pair.ours.wrong == 0);
  CHECK(opens(files + 1));  // where the exporter listens
}

TEST_CASE("pieces: what is unmapped is told, and unmapped by others", "[device]") {
  PiecesPair pair;
  pair.map_at_exporter(1, 4);
  const Exported before = pair.pieces_at(PiecesPair::piece);
  REQUIRE(pair.import(before));
  pair.theirs.pieces.erase(3 * PiecesPair::piece);  // the last of three
  for (int i = 0; i < 4; ++i) pair.poll();
  CHECK(pair.ours.open.empty());
  CHECK(pair.exporter.statistics().exports == 0);
  std::string why;
  CHECK_FALSE(pair.import(before, &why));
  CHECK(why == "its owner has freed the memory");
  CHECK(pair.pieces_at(PiecesPair::piece).pieces == 2);
  CHECK(pair.ours.wrong == 0);
}

TEST_CASE("pieces: another piece in place of one is another export, seen at once", "[device]") {
  PiecesPair pair;
  pair.map_at_exporter(1, 4);
  const Exported before = pair.pieces_at(PiecesPair::piece, 3 * PiecesPair::piece);
  pair.map_at_exporter(2, 3);  // freed and mapped anew
  const Exported elsewhere = pair.pieces_at(PiecesPair::piece, PiecesPair::piece);
  CHECK(elsewhere.buffer_id == before.buffer_id);  // none of its bytes is there
  const Exported now = pair.pieces_at(PiecesPair::piece, PiecesPair::piece + 1);
  CHECK(now.buffer_id != before.buffer_id);
  CHECK_FALSE(pair.import(before));
  const Mapping mapping = pair.import(now);
  REQUIRE(mapping);
}

TEST_CASE("pieces: a segment that grows is mapped anew, and what is under way goes on", "[device]") {
  PiecesPair pair;
  pair.map_at_exporter(1, 2);
  const Exported before = pair.pieces_at(PiecesPair::piece);
  const Mapping held = pair.import(before);
  pair.map_at_exporter(2, 4);
  CHECK(pair.pieces_at(PiecesPair::piece).buffer_id == before.buffer_id);
  const Exported grown = pair.pieces_at(PiecesPair::piece, PiecesPair::piece + 1);
  CHECK(grown.pieces == 3);
  const Mapping whole = pair.import(grown);
  REQUIRE(whole);
  CHECK(pair.ours.open.size() == 2);
  CHECK(pair.import(before).at(before.base) == held.at(before.base));
  CHECK(pair.ours.opens == 2);
  pair.ours.busy = true;  // older mappings are in nobody's way
  pair.map_at_exporter(4, 5);
  CHECK(pair.import(pair.pieces_at(PiecesPair::piece, 4 * PiecesPair::piece)));
  pair.ours.busy = false;
  // What ends behind the last piece cannot be had by another export.
  const Exported beyond = pair.pieces_at(4 * PiecesPair::piece, 2 * PiecesPair::piece);
  CHECK(beyond.base + beyond.size == 5 * PiecesPair::piece);
  CHECK(pair.pieces_at(4 * PiecesPair::piece, 2 * PiecesPair::piece).buffer_id == beyond.buffer_id);
}

TEST_CASE("pieces: where no table tells what is freed, what takes its place does", "[device]") {
  PiecesPair pair;
  for (int round = 0; round < 5; ++round) {
    pair.map_at_exporter(1, 3);  // freed and mapped anew
    static_cast<void>(pair.map(pair.pieces_at(PiecesPair::piece, 2 * PiecesPair::piece)));
    CHECK(pair.ours.open.size() == 1);
  }
  CHECK(pair.ours.wrong == 0);
}

TEST_CASE("pieces: more than one export may have", "[device]") {
  PiecesPair pair;
  pair.map_at_exporter(1, 301);
  const Exported first = pair.pieces_at(PiecesPair::piece);
  CHECK(first.pieces == most_pieces);
  const auto holds = [](const Exported& made, std::uint64_t address, std::uint64_t bytes) {
    return made.base <= address && address + bytes <= made.base + made.size;
  };
  const std::uint64_t across = first.base + first.size - 8;
  const Exported second = pair.pieces_at(across, 16);
  CHECK(holds(second, across, 16));
  CHECK(pair.pieces_at(across, 16).buffer_id == second.buffer_id);
  CHECK(pair.pieces_at(PiecesPair::piece, 16).buffer_id == first.buffer_id);
  CHECK(pair.import(first));
  CHECK(pair.import(second));
  // A buffer that is longer than an export may be gets the same one each time.
  const std::uint64_t bytes = 200 * PiecesPair::piece;
  CHECK(pair.pieces_at(PiecesPair::piece, bytes).buffer_id == first.buffer_id);
  const auto count = pair.exporter.statistics().exports;
  for (int i = 0; i < 3; ++i) static_cast<void>(pair.pieces_at(50 * PiecesPair::piece, bytes));
  CHECK(pair.exporter.statistics().exports <= count + 1);
}

TEST_CASE("pieces: refusals have reasons, and leave no descriptors", "[device]") {
  PiecesPair pair;
  pair.map_at_exporter(1, 4);
  const Exported made = pair.pieces_at(PiecesPair::piece);
  std::string why;
  const auto refused = [&](const Exported& given, const char* reason) {
    why.clear();
    Peers another(pair.ours);
    CHECK_FALSE(another.import_memory(0, 5, given, &why));
    INFO(why);
    CHECK(why.find(reason) != std::string::npos);
  };
  const int files = open_files();
  pair.theirs.refuse = true;
  refused(made, "the driver does not export it");
  pair.theirs.refuse = false;
  pair.ours.refuse = true;
  refused(made, "will not open");
  pair.ours.refuse = false;
  Exported wrong = made;
  wrong.size += page;
  refused(wrong, "not those that were described");
  wrong = made;
  ++wrong.handle[8];  // in the secret
  refused(wrong, "closed the connection");
  wrong = made;
  ++wrong.handle[0];  // in the name
  refused(wrong, "cannot be reached");
  CHECK(opens(files));
  CHECK(pair.import(made));
}

TEST_CASE("pieces: their refusal does not concern memory of cudaMalloc, nor its refusal them", "[device]") {
  for (const bool pieces_first : {true, false}) {
    PiecesPair pair;
    pair.map_at_exporter(1, 2);
    pair.theirs.allocate(8 * PiecesPair::piece, page);
    const Exported pieces = pair.pieces_at(PiecesPair::piece), plain = pair.exported(8 * PiecesPair::piece);
    pair.ours.refuse = true;
    CHECK_FALSE(pair.import(pieces_first ? pieces : plain));
    pair.ours.refuse = false;
    CHECK_FALSE(pair.import(pieces_first ? pieces : plain));  // remembered
    CHECK(pair.import(pieces_first ? plain : pieces));
  }
}

TEST_CASE("pieces: an owner that does not answer is not waited for", "[device]") {
  PiecesPair pair;
  pair.map_at_exporter(1, 2);
  Exported made = pair.pieces_at(PiecesPair::piece);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = "gpudt-handles-0000000000000001";
  name.copy(address.sun_path + 1, name.size());
  const int silent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  REQUIRE(bind(silent, reinterpret_cast<const sockaddr*>(&address), bytes) == 0);
  REQUIRE(listen(silent, 1) == 0);
  const std::uint64_t server = 1;
  std::memcpy(made.handle, &server, sizeof server);
  std::string why;
  const auto began = std::chrono::steady_clock::now();
  CHECK_FALSE(pair.import(made, &why));
  CHECK(why.find("does not answer") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
  close(silent);
}

TEST_CASE("pieces: a GPU that this process does not see is mapped if possible, and else named", "[device]") {
  PiecesPair pair;
  pair.map_at_exporter(1, 2);
  pair.theirs.allocate(8 * PiecesPair::piece, page);
  const Traits unseen = with_id({9});
  for (const std::uint64_t address : {PiecesPair::piece, 8 * PiecesPair::piece}) {
    Exported made = {};
    REQUIRE(pair.exporter.export_memory(0, unseen, reinterpret_cast<void*>(address), made));
    CHECK(pair.importer.import_memory(0, 5, made, nullptr));
    std::string why;
    pair.ours.refuse = true;
    Peers another(pair.ours);
    CHECK_FALSE(another.import_memory(0, 5, made, &why));
    CHECK(why.find("does not see the GPU") != std::string::npos);
    CHECK(why.find("will not open") != std::string::npos);
    pair.ours.refuse = false;
  }
}

TEST_CASE("pieces: a process maps its own for another of its GPUs", "[device]") {
  PiecesPair pair;
  pair.map_at_exporter(1, 3);
  pair.theirs.allocate(PiecesPair::piece, 2 * PiecesPair::piece, false);  // so that it is known to be GPU 1's
  const Exported made = pair.pieces_at(PiecesPair::piece);
  std::string why;
  const Mapping same = pair.exporter.import_memory(1, 5, made, &why);
  REQUIRE(same);
  CHECK(same.at(made.base) == reinterpret_cast<void*>(made.base));
  const Mapping other = pair.exporter.import_memory(0, 5, made, &why);
  INFO(why);
  REQUIRE(other);
  CHECK(other.at(made.base) != reinterpret_cast<void*>(made.base));
  CHECK(pair.theirs.enabled.empty());
}

}  // namespace
