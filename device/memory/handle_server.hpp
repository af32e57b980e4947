// How file descriptors of memory in pieces (cuMemCreate) come to the processes that map it. The exporter has a thread
// that passes them on over a Unix domain socket, so that nobody waits for its MPI calls; the descriptors exist only
// while they are passed, since an open one keeps the memory from being freed. (pidfd_getfd() would need no thread, but
// containers and the Yama security module forbid it.)
//
// The socket has an abstract name, of random digits, which ends with the process. Both ends refuse other users.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "device/runtime/runtime.hpp"

namespace gpudt::device {

/// A file descriptor, closed at the end.
class OwnedFile {
 public:
  explicit OwnedFile(int number = -1) : number_(number) {}
  OwnedFile(OwnedFile&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  OwnedFile& operator=(OwnedFile&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~OwnedFile();
  explicit operator bool() const { return number_ >= 0; }
  int get() const { return number_; }

 private:
  int number_;
};

struct PassedPiece {
  OwnedFile file;
  std::uint64_t size;
};

/// The largest number of pieces of one export; Linux passes at most 253 descriptors at a time.
inline constexpr std::size_t most_pieces = 128;

class HandleServer {
 public:
  /// Returns the pieces of export `id`; none if there is no such export (any more). Called by the thread.
  using Pieces = std::function<std::vector<PassedPiece>(std::uint64_t id)>;

  /// Starts the thread. Throws Error.
  explicit HandleServer(Pieces pieces);
  /// Ends it.
  ~HandleServer();
  HandleServer(const HandleServer&) = delete;
  HandleServer& operator=(const HandleServer&) = delete;

  /// By which another process asks for export `id`.
  IpcHandle handle(std::uint64_t id) const;

 private:
  void run() const;
  void serve(const OwnedFile& client) const;

  Pieces pieces_;
  std::uint64_t name_ = 0, secret_ = 0;
  OwnedFile listening_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// Asks the process that has made `handle` for its pieces. Throws Error, after 1.5 s at the latest.
std::vector<PassedPiece> ask_for_pieces(const IpcHandle& handle);

}  // namespace gpudt::device
