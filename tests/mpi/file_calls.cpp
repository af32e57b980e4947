// The table of accesses to files.
#include "tests/mpi/file_calls.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/catch.hpp"
#include "tests/support/mpi_harness.hpp"

namespace gpudt::test {
namespace {

// The end of the arguments of an access `a`, but for a status or a request.
#define DATA a.buffer, a.count, a.type
#define LIST(...) __VA_ARGS__

#define ACCESS(name, writes, position, collective, arguments)                                                  \
  FileAccess {                                                                                                 \
#name, writes, position, collective, false, [](bool reference, const FileArguments& a, MPI_Status* status) { \
      return reference ? PMPI_File_##name(a.file, LIST arguments, status)                          \
                       : MPI_File_##name(a.file, LIST arguments, status);                          \
    } \
  }

#define NONBLOCKING_ACCESS(name, writes, position, collective, arguments)                                     \
  FileAccess {                                                                                                \
#name, writes, position, collective, true, [](bool reference, const FileArguments& a, MPI_Status* status) { \
      MPI_Request request = MPI_REQUEST_NULL;                                                      \
      const int code = reference ? PMPI_File_##name(a.file, LIST arguments, &request)              \
                                 : MPI_File_##name(a.file, LIST arguments, &request);              \
      if (code != MPI_SUCCESS) return code;                                                        \
      return reference ? PMPI_Wait(&request, status) : MPI_Wait(&request, status);                 \
    } \
  }

#define SPLIT_ACCESS(name, writes, position, arguments)                                              \
  FileAccess {                                                                                       \
#name "_begin and _end", writes, position, true, true,                                             \
    [](bool reference, const FileArguments& a, MPI_Status* status) {                               \
      const int code = reference ? PMPI_File_##name##_begin(a.file, LIST arguments)                \
                                 : MPI_File_##name##_begin(a.file, LIST arguments);                \
      if (code != MPI_SUCCESS) return code;                                                        \
      return reference ? PMPI_File_##name##_end(a.file, a.buffer, status)                          \
                       : MPI_File_##name##_end(a.file, a.buffer, status);                          \
    } \
  }

#define ACCESSES(verb, writes)                                                               \
  ACCESS(verb, writes, Position::individual, false, (DATA)),                                 \
      ACCESS(verb##_all, writes, Position::individual, true, (DATA)),                        \
      ACCESS(verb##_at, writes, Position::given, false, (a.offset, DATA)),                   \
      ACCESS(verb##_at_all, writes, Position::given, true, (a.offset, DATA)),                \
      ACCESS(verb##_shared, writes, Position::shared, false, (DATA)),                        \
      ACCESS(verb##_ordered, writes, Position::ordered, true, (DATA)),                       \
      NONBLOCKING_ACCESS(i##verb, writes, Position::individual, false, (DATA)),              \
      NONBLOCKING_ACCESS(i##verb##_all, writes, Position::individual, true, (DATA)),         \
      NONBLOCKING_ACCESS(i##verb##_at, writes, Position::given, false, (a.offset, DATA)),    \
      NONBLOCKING_ACCESS(i##verb##_at_all, writes, Position::given, true, (a.offset, DATA)), \
      NONBLOCKING_ACCESS(i##verb##_shared, writes, Position::shared, false, (DATA)),         \
      SPLIT_ACCESS(verb##_all, writes, Position::individual, (DATA)),                        \
      SPLIT_ACCESS(verb##_at_all, writes, Position::given, (a.offset, DATA)),                \
      SPLIT_ACCESS(verb##_ordered, writes, Position::ordered, (DATA))

int files_made = 0;

}  // namespace

const std::vector<FileAccess> file_accesses = {ACCESSES(write, true), ACCESSES(read, false)};

int access_packed(const FileAccess& access, FileArguments arguments, MPI_Status* status) {
  int size = 0, position = 0;
  PMPI_Type_size(arguments.type, &size);
  const int bytes = arguments.count * size;
  Stream packed(static_cast<std::size_t>(bytes) + 1);  // an address even for no bytes
  PMPI_Pack(arguments.buffer, arguments.count, arguments.type, packed.data(), bytes, &position, MPI_COMM_SELF);
  const int code = access.run(true, {arguments.file, arguments.offset, packed.data(), bytes, MPI_BYTE}, status);
  position = 0;
  if (!access.writes)
    PMPI_Unpack(packed.data(), bytes, &position, arguments.buffer, arguments.count, arguments.type, MPI_COMM_SELF);
  return code;
}

TemporaryFile::TemporaryFile(const std::vector<char>& contents) {
  int process = static_cast<int>(getpid());
  PMPI_Bcast(&process, 1, MPI_INT, 0, gpudt::test::comm());
  path_ = std::filesystem::temp_directory_path() /
          ("gpudt-test-" + std::to_string(process) + "-" + std::to_string(++files_made));
  if (rank() == 0) {
    std::ofstream file(path_, std::ios::binary);
    file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  }
  lock_step();
}

TemporaryFile::~TemporaryFile() {
  lock_step();
  std::error_code ignored;
  if (rank() == 0) std::filesystem::remove(path_, ignored);
}

std::vector<char> TemporaryFile::contents() const {
  lock_step();
  std::ifstream file(path_, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

OpenFile::OpenFile(MPI_Comm comm, const TemporaryFile& file, int mode) {
  MPI_OK(MPI_File_open(comm, file.path().c_str(), mode, MPI_INFO_NULL, &file_));
}

OpenFile::~OpenFile() {
  close();
}

void OpenFile::close() {
  if (file_ != MPI_FILE_NULL) MPI_File_close(&file_);
}

}  // namespace gpudt::test
