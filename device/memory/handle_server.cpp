#include "device/memory/handle_server.hpp"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>

#include "base/one_thread.hpp"
#include "base/signals.hpp"

namespace gpudt::device {
namespace {

using SteadyClock = std::chrono::steady_clock;

/// How long one end waits for the other.
constexpr std::chrono::milliseconds longest_wait{500};
/// After the system has refused a connection, for want of descriptors for example.
constexpr std::chrono::milliseconds pause{10};
constexpr int waiting_clients = 128;

/// What is inside an IpcHandle.
struct Name {
  std::uint64_t server, secret, id;
};

struct Request {
  std::uint64_t secret, id;
};

/// With it come the file descriptors.
struct Answer {
  std::uint64_t count;  ///< 0: there is no such export
  std::uint64_t sizes[most_pieces];
};

/// An answer as sendmsg() and recvmsg() take it, with room for up to so many file descriptors.
class Message {
 public:
  Message(Answer& answer, std::size_t files) : data_{&answer, sizeof answer} {
    header.msg_iov = &data_;
    header.msg_iovlen = 1;
    if (files == 0) return;
    header.msg_control = room_;
    header.msg_controllen = CMSG_SPACE(files * sizeof(int));
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  msghdr header = {};

 private:
  iovec data_;
  alignas(cmsghdr) char room_[CMSG_SPACE(most_pieces * sizeof(int))] = {};
};

[[noreturn]] void fail(const std::string& what) {
  throw Error(Failure::runtime, "handles of memory: " + what);
}
[[noreturn]] void fail_by_system(const char* what) {
  fail(std::string(what) + ": " + std::strerror(errno));
}

std::pair<sockaddr_un, socklen_t> address_of(std::uint64_t server) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // The first byte is zero: a name that is no file's.
  const int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "gpudt-handles-%016llx",
                                   static_cast<unsigned long long>(server));
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(length))};
}

OwnedFile make_socket() {
  OwnedFile made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!made) fail_by_system("socket");
  return made;
}

/// Whether the process at the other end belongs to the same user.
bool is_of_this_user(const OwnedFile& connection) {
  ucred other = {};
  socklen_t length = sizeof other;
  return getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 && other.uid == geteuid();
}

void limit_waiting(const OwnedFile& connection) {
  const timeval limit = {0, std::chrono::microseconds(longest_wait).count()};
  setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/// Makes a system call again when a signal has interrupted it, but not for ever.
template <class Call>
auto again(const Call& call) {
  const auto until = SteadyClock::now() + longest_wait;
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR || SteadyClock::now() >= until) return result;
  }
}

/// The file descriptors that came with a message, which are closed also if the message is refused.
std::vector<OwnedFile> files_of(msghdr& message) {
  std::vector<OwnedFile> files;
  files.reserve(most_pieces);
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(each) + i * sizeof file, sizeof file);
      files.emplace_back(file);
    }
  }
  return files;
}

void send_answer(const OwnedFile& client, const std::vector<PassedPiece>& pieces) {
  Answer answer = {};
  Message message(answer, pieces.size());
  answer.count = pieces.size();
  if (!pieces.empty()) {
    cmsghdr& files = *CMSG_FIRSTHDR(&message.header);
    files.cmsg_level = SOL_SOCKET;
    files.cmsg_type = SCM_RIGHTS;
    files.cmsg_len = CMSG_LEN(pieces.size() * sizeof(int));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const int file = pieces[i].file.get();
      std::memcpy(CMSG_DATA(&files) + i * sizeof file, &file, sizeof file);
      answer.sizes[i] = pieces[i].size;
    }
  }
  again([&] { return sendmsg(client.get(), &message.header, MSG_NOSIGNAL); });  // a client that has gone needs none
}

std::vector<PassedPiece> receive_answer(const OwnedFile& server) {
  Answer answer = {};
  Message message(answer, most_pieces);
  const ssize_t received = again([&] { return recvmsg(server.get(), &message.header, MSG_CMSG_CLOEXEC); });
  if (received < 0) fail_by_system("their owner does not answer");
  std::vector<OwnedFile> files = files_of(message.header);
  if (received != sizeof answer) fail("their owner has closed the connection");
  if (answer.count == 0) fail("their owner has freed the memory, or the driver does not export it");
  if ((message.header.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0 || files.size() != answer.count)
    fail("not all came (are there enough file descriptors? ulimit -n)");
  std::vector<PassedPiece> pieces;
  pieces.reserve(files.size());
  for (std::size_t i = 0; i < files.size(); ++i) pieces.push_back({std::move(files[i]), answer.sizes[i]});
  return pieces;
}

}  // namespace

OwnedFile::~OwnedFile() {
  if (number_ >= 0) close(number_);
}

HandleServer::HandleServer(Pieces pieces) : pieces_(std::move(pieces)), listening_(make_socket()) {
  std::uint64_t random[2];
  if (getrandom(random, sizeof random, 0) != sizeof random) fail_by_system("random numbers");
  name_ = random[0];
  secret_ = random[1];
  const auto [address, length] = address_of(name_);
  if (bind(listening_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) fail_by_system("bind");
  if (listen(listening_.get(), waiting_clients) != 0) fail_by_system("listen");
  try {
    const SignalsBlocked blocked;
    expect_threads();
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    fail(std::string("no thread to pass them on: ") + error.what());
  }
}

HandleServer::~HandleServer() {
  stopping_ = true;
  shutdown(listening_.get(), SHUT_RDWR);  // wakes the thread
  thread_.join();
}

IpcHandle HandleServer::handle(std::uint64_t id) const {
  const Name name = {name_, secret_, id};
  IpcHandle handle = {};
  static_assert(sizeof name <= sizeof handle);
  std::memcpy(handle.data(), &name, sizeof name);
  return handle;
}

void HandleServer::run() const {
  while (!stopping_) {
    const OwnedFile client(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client)
      serve(client);
    else if (errno != EINTR && errno != ECONNABORTED)
      std::this_thread::sleep_for(pause);
  }
}

void HandleServer::serve(const OwnedFile& client) const try {
  if (!is_of_this_user(client)) return;
  limit_waiting(client);
  Request request = {};
  const ssize_t received = again([&] { return recv(client.get(), &request, sizeof request, 0); });
  if (received != sizeof request || request.secret != secret_) return;
  send_answer(client, pieces_(request.id));
} catch (const std::exception&) {
  // No memory: the other end sees that the connection is closed.
}

std::vector<PassedPiece> ask_for_pieces(const IpcHandle& handle) {
  Name name;
  std::memcpy(&name, handle.data(), sizeof name);
  const OwnedFile server = make_socket();
  limit_waiting(server);
  const auto [address, length] = address_of(name.server);
  const auto* const where = reinterpret_cast<const sockaddr*>(&address);
  const socklen_t bytes = length;
  if (again([&] { return connect(server.get(), where, bytes); }) != 0)
    fail_by_system("their owner cannot be reached (processes isolated from each other?)");
  if (!is_of_this_user(server)) fail("their owner is another user");
  const Request request = {name.secret, name.id};
  if (again([&] { return send(server.get(), &request, sizeof request, MSG_NOSIGNAL); }) != sizeof request)
    fail_by_system("their owner does not answer");
  return receive_answer(server);
}

}  // namespace gpudt::device
