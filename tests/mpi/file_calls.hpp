// Every way to read and to write a file, called through one table.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

namespace gpudt::test {

/// Which position an access uses; the accesses of `ordered` and of the collective ones are made by all processes.
enum class Position { individual, given, shared, ordered };

/// The arguments of all accesses.
struct FileArguments {
  MPI_File file = MPI_FILE_NULL;
  MPI_Offset offset = 0;  ///< Position::given, in etypes
  void* buffer = nullptr;
  int count = 0;
  MPI_Datatype type = MPI_BYTE;
};

struct FileAccess {
  const char* name;
  bool writes;
  Position position;
  bool collective;
  bool nonblocking;  ///< or in two parts
  /// From beginning to end, under the MPI_ names or under the PMPI_ names. The status is filled on success.
  int (*run)(bool reference, const FileArguments&, MPI_Status*);
};

extern const std::vector<FileAccess> file_accesses;

/// An access of packed bytes, under its PMPI_ name, that has the effect of `access` with these arguments: what the MPI
/// library makes of the datatype in host memory does not count.
int access_packed(const FileAccess& access, FileArguments arguments, MPI_Status* status);

/// A file in the directory for temporary files, opened by all processes twice or more times under its own name, and
/// deleted in the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::vector<char>& contents = {});
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }
  /// What it holds now; the same on all processes. To be called when it is closed everywhere.
  std::vector<char> contents() const;

 private:
  std::string path_;
};

/// An open file. Closed by all processes together.
class OpenFile {
 public:
  OpenFile(MPI_Comm comm, const TemporaryFile& file, int mode);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  MPI_File get() const { return file_; }
  void close();

 private:
  MPI_File file_ = MPI_FILE_NULL;
};

}  // namespace gpudt::test
