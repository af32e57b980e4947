// Reads and writes of device memory against the same accesses of host memory to a file of their own.
#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tests/mpi/collective_exchange.hpp"
#include "tests/mpi/file_calls.hpp"
#include "tests/mpi/region.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/mpi_quirks.hpp"

using namespace gpudt::test;

namespace {

/// What part of a file each process sees.
struct View {
  const char* text;
  const char* representation;
  MPI_Datatype etype;
  bool interleaved;  ///< a file type with gaps, in which the other processes' parts lie
};

const View views[] = {{"bytes", "native", MPI_BYTE, false},
                      {"interleaved bytes", "native", MPI_BYTE, true},
                      {"interleaved ints", "native", MPI_INT, true},
                      {"external32", "external32", MPI_INT, false}};

/// Each process has its own part, but for the accesses by a shared pointer, for which all must have the same view.
void set_view(MPI_File file, const View& view, Position position) {
  const int part = position == Position::shared || position == Position::ordered ? 0 : rank();
  if (!view.interleaved) {
    constexpr MPI_Offset part_bytes = 1 << 17;
    MPI_OK(MPI_File_set_view(file, 24 + part * part_bytes, view.etype, view.etype, view.representation, MPI_INFO_NULL));
    return;
  }
  constexpr int own = 6;  // etypes in a row
  MPI_Datatype block = MPI_DATATYPE_NULL, tile = MPI_DATATYPE_NULL;
  MPI_Aint lb = 0, extent = 0;
  PMPI_Type_get_extent(view.etype, &lb, &extent);
  PMPI_Type_contiguous(own, view.etype, &block);
  PMPI_Type_create_resized(block, 0, own * extent * ranks(), &tile);
  PMPI_Type_commit(&tile);
  MPI_OK(MPI_File_set_view(file, 16 + own * extent * part, view.etype, tile, view.representation, MPI_INFO_NULL));
  PMPI_Type_free(&block);
  PMPI_Type_free(&tile);
}

/// The same file twice, for accesses from device memory and for the reference.
class FilePair {
 public:
  FilePair(MPI_Comm comm, const View& view, Position position, const std::vector<char>& contents)
      : converts_(view.representation != std::string_view("native")),
        file_(contents),
        reference_file_(contents),
        open_(std::make_unique<OpenFile>(comm, file_, MPI_MODE_RDWR)),
        reference_(std::make_unique<OpenFile>(comm, reference_file_, MPI_MODE_RDWR)) {
    set_view(open_->get(), view, position);
    set_view(reference_->get(), view, position);
  }
  bool converts() const { return converts_; }
  MPI_File file() const { return open_->get(); }
  MPI_File reference() const { return reference_->get(); }
  bool alike() {
    open_->close();
    reference_->close();
    return file_.contents() == reference_file_.contents();
  }

 private:
  bool converts_;
  TemporaryFile file_, reference_file_;
  std::unique_ptr<OpenFile> open_, reference_;
};

std::vector<char> pattern(std::size_t bytes) {
  std::vector<char> contents(bytes);
  for (std::size_t i = 0; i < bytes; ++i) contents[i] = static_cast<char>(mix(seed(), i));
  return contents;
}

void check_statuses(const MPI_Status& found, const MPI_Status& wanted, MPI_Datatype type) {
  int count = -1, wanted_count = -1, elements = -1, wanted_elements = -1;
  PMPI_Get_count(&found, type, &count);
  PMPI_Get_count(&wanted, type, &wanted_count);
  CHECK(count == wanted_count);
  if (!counts_elements) return;
  PMPI_Get_elements(&found, type, &elements);
  PMPI_Get_elements(&wanted, type, &wanted_elements);
  CHECK(elements == wanted_elements);
}

/// An access and its reference, to a file whose representation `converts` the elements or is that of memory. Shared
/// file pointers are used by one process after the other.
void access_both(const FileAccess& access, bool converts, FileArguments arguments, FileArguments reference) {
  const bool in_turn = access.position == Position::shared;
  for (int turn = 0; turn < (in_turn ? ranks() : 1); ++turn) {
    if (!in_turn || turn == rank()) {
      MPI_Status status{}, wanted{};
      MPI_OK(converts ? access.run(true, reference, &wanted) : access_packed(access, reference, &wanted));
      MPI_OK(access.run(false, arguments, &status));
      check_statuses(status, wanted, arguments.type);
    }
    if (in_turn) lock_step();
  }
}

/// Two accesses one after the other, so that the file pointer counts.
void access_twice(const FileAccess& access, FilePair& files, const Type& type, int count, Place place) {
  Region region(place, {{0, count, type}}, 8);
  for (int round = 0; round < 2; ++round) {
    region.fill(mix(seed(), static_cast<std::uint64_t>(rank() * 2 + round)));
    const MPI_Offset offset = 36 * (rank() + 2 * round);
    access_both(access, files.converts(), {files.file(), offset, region.address(), count, type},
                {files.reference(), offset, region.reference(), count, type});
    CHECK(region.difference() == "");
  }
}

/// For a view with this etype.
Type memory_type(std::mt19937_64& random, MPI_Datatype etype) {
  if (etype == MPI_BYTE) return random_types(random).send;
  switch (random() % 3) {
    case 0:
      return vector(7, 2, 5, MPI_INT);
    case 1:
      return vector(36, 1, 1, MPI_INT);
    default: {
      const int lengths[] = {3, 0, 5, 1}, displs[] = {10, 7, -4, 3};
      MPI_Datatype made = MPI_DATATYPE_NULL;
      PMPI_Type_indexed(4, lengths, displs, MPI_INT, &made);
      return {made, "indexed INT"};
    }
  }
}

/// MPICH 4.0 reads and writes host memory of many types wrongly.
bool takes_every_type(Place place) {
  return !mpich || !(host_only() || place == Place::host || place == Place::pinned || place == Place::registered);
}

constexpr std::size_t file_bytes = 1 << 20;

void access_all(const View& view, int random_cases) {
  std::mt19937_64 random = random_numbers(view.text);
  const std::vector<char> contents = pattern(file_bytes);
  for (const FileAccess& access : file_accesses) {
    FilePair files(comm(), view, access.position, contents);
    for (int i = 0; i < random_cases; ++i) {
      Type any = memory_type(random, view.etype);
      const int count = i == 1 ? 0 : 1 + static_cast<int>(random() % 4);
      const Place place = i < 2 ? Place::device : mixed(random)[static_cast<std::size_t>(rank())];
      const Type type = takes_every_type(place) ? std::move(any) : vector(7, 2, 5, MPI_INT);
      const std::string text = std::string(access.name) + ", " + view.text + ", " + std::to_string(count) + " x " +
                               type.text() + ", " + place_name(place);
      INFO(text);
      step(text);
      access_twice(access, files, type, count, place);
    }
    INFO(access.name);
    CHECK(files.alike());
  }
}

}  // namespace

TEST_CASE("files of bytes", "[file]") {
  access_all(views[0], scaled(3));
}

TEST_CASE("files that processes share piece by piece", "[file]") {
  access_all(views[1], scaled(3));
}

TEST_CASE("files of ints that processes share piece by piece", "[file]") {
  access_all(views[2], scaled(3));
}

TEST_CASE("files in external32", "[file]") {
  MPICH_CANNOT("it crashes");
  access_all(views[3], scaled(3));
}

TEST_CASE("files and every kind of memory", "[file]") {
  const std::vector<char> contents = pattern(file_bytes);
  const Type type = vector(500, 2, 5, MPI_INT);
  for (const FileAccess& access : file_accesses) {
    FilePair files(comm(), views[2], access.position, contents);
    for (const Place place : all_places) {
      const std::string text = std::string(access.name) + ", " + place_name(place);
      INFO(text);
      step(text);
      access_twice(access, files, type, 1, place);
    }
    INFO(access.name);
    CHECK(files.alike());
  }
}
