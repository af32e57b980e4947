// MPI-4.1 section 12.4.3: the memory allocation kinds that info objects name.
#include <algorithm>
#include <array>
#include <sstream>
#include <string>
#include <vector>

#include "tests/mpi/exchange.hpp"

using namespace gpudt::test;

namespace {

constexpr const char* key = "mpi_memory_alloc_kinds";

std::vector<std::string> kinds_in(MPI_Info info) {
  int length = 0, found = 0;
  MPI_OK(MPI_Info_get_valuelen(info, key, &length, &found));
  if (found == 0) return {};
  std::vector<char> value(static_cast<std::size_t>(length) + 1);
  MPI_OK(MPI_Info_get(info, key, length, value.data(), &found));
  std::vector<std::string> kinds;
  std::istringstream list(value.data());
  for (std::string kind; std::getline(list, kind, ',');) kinds.push_back(kind);
  return kinds;
}

/// Frees the info.
std::vector<std::string> kinds_of(MPI_Info info) {
  auto kinds = kinds_in(info);
  MPI_OK(MPI_Info_free(&info));
  return kinds;
}

void check_kinds(const std::vector<std::string>& kinds) {
  if (host_only()) return;
  for (const char* const wanted : {"mpi", "system", "cuda", "cuda:device", "cuda:host", "cuda:managed"})
    CHECK(std::count(kinds.begin(), kinds.end(), wanted) == 1);
  for (const char* const unknown : {"rocm", "rocm:device", "level_zero"})
    CHECK(std::count(kinds.begin(), kinds.end(), unknown) == 0);
}

bool has_key(MPI_Info info) {
  int keys = 0;
  MPI_OK(MPI_Info_get_nkeys(info, &keys));
  for (int number = 0; number < keys; ++number) {
    std::array<char, MPI_MAX_INFO_KEY + 1> name{};
    MPI_OK(MPI_Info_get_nthkey(info, number, name.data()));
    if (std::string(name.data()) == key) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("MPI_INFO_ENV names memory allocation kinds", "[errors]") {
  check_kinds(kinds_in(MPI_INFO_ENV));
  CHECK((host_only() || has_key(MPI_INFO_ENV)));
  MPI_Info copy = MPI_INFO_NULL;
  MPI_OK(MPI_Info_dup(MPI_INFO_ENV, &copy));
  CHECK((host_only() || has_key(copy)));
  check_kinds(kinds_of(copy));
}

TEST_CASE("communicators, windows and files name memory allocation kinds", "[errors]") {
  MPI_Info request = MPI_INFO_NULL, used = MPI_INFO_NULL;
  MPI_OK(MPI_Info_create(&request));
  MPI_OK(MPI_Info_set(request, key, "system,cuda:device,rocm"));
  MPI_OK(MPI_Info_set(request, "mpi_assert_memory_alloc_kinds", "system"));
  MPI_Comm made = MPI_COMM_NULL;
  MPI_OK(MPI_Comm_dup_with_info(comm(), request, &made));
  MPI_OK(MPI_Info_free(&request));
  for (const MPI_Comm each : {comm(), made}) {
    MPI_OK(MPI_Comm_get_info(each, &used));
    check_kinds(kinds_of(used));
  }
  MPI_OK(MPI_Comm_free(&made));

  Memory exposed(Place::device, 64);
  MPI_Win win = MPI_WIN_NULL;
  MPI_OK(MPI_Win_create(exposed.data(), 64, 1, MPI_INFO_NULL, comm(), &win));
  MPI_OK(MPI_Win_get_info(win, &used));
  check_kinds(kinds_of(used));
  MPI_OK(MPI_Win_free(&win));

  MPI_File file = MPI_FILE_NULL;
  MPI_OK(MPI_File_open(MPI_COMM_SELF, "/dev/null", MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
  MPI_OK(MPI_File_get_info(file, &used));
  check_kinds(kinds_of(used));
  MPI_OK(MPI_File_close(&file));
}

#ifdef GPUDT_MPI_SESSIONS
TEST_CASE("sessions name memory allocation kinds, whatever is requested", "[errors]") {
  for (const char* const requested : {"", "system", "system,cuda:device,rocm"}) {
    MPI_Info request = MPI_INFO_NULL, used = MPI_INFO_NULL;
    MPI_OK(MPI_Info_create(&request));
    if (*requested != '\0') MPI_OK(MPI_Info_set(request, key, requested));
    MPI_Session session = MPI_SESSION_NULL;
    MPI_OK(MPI_Session_init(request, MPI_ERRORS_RETURN, &session));
    MPI_OK(MPI_Info_free(&request));
    MPI_OK(MPI_Session_get_info(session, &used));
    check_kinds(kinds_of(used));
    MPI_OK(MPI_Session_finalize(&session));
  }
}
#endif
