#include "interpose/transport/peer/segment_names.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gpudt::interpose::peer {
namespace {

constexpr std::size_t secret_bytes = 32;
constexpr mode_t others = S_IRWXG | S_IRWXO;

/// SipHash-2-4 (Aumasson and Bernstein), a hash whose value tells nothing of those of other texts without the key.
std::uint64_t sip_hash(std::uint64_t key0, std::uint64_t key1, const std::string& text) {
  std::uint64_t v0 = key0 ^ 0x736f6d6570736575, v1 = key1 ^ 0x646f72616e646f6d, v2 = key0 ^ 0x6c7967656e657261,
                v3 = key1 ^ 0x7465646279746573;
  const auto round = [&] {
    v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
    v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
  };
  const auto absorb = [&](std::uint64_t word) {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  };
  std::size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    absorb(word);
  }
  std::uint64_t last = std::uint64_t{text.size()} << 56;
  for (std::size_t i = 0; at + i < text.size(); ++i)
    last |= std::uint64_t{static_cast<unsigned char>(text[at + i])} << (8 * i);
  absorb(last);
  v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) round();
  return v0 ^ v1 ^ v2 ^ v3;
}

std::string hexadecimal(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

/// 128 bits.
std::string hash_of(const std::string& key, const std::string& text) {
  const std::uint64_t one = sip_hash(1, 2, key), other = sip_hash(3, 4, key);
  return hexadecimal(sip_hash(one, other, text)) + hexadecimal(sip_hash(other, ~one, text));
}

/// The folder that the launcher's server has made for the processes of this user's job; empty if there is none that
/// nobody else has access to.
std::string private_folder() {
  const char* const folder = std::getenv("PMIX_SERVER_TMPDIR");
  struct stat status = {};
  if (folder == nullptr || lstat(folder, &status) != 0) return {};
  const bool ours = S_ISDIR(status.st_mode) && status.st_uid == geteuid() && (status.st_mode & others) == 0;
  return ours ? folder : "";
}

/// The secret in the file; empty if there is none yet, or it is not to be trusted.
std::string read_secret(const std::string& name) {
  const int file = open(name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return {};
  std::string secret(secret_bytes, '\0');
  const bool read_all = is_private(file) && read(file, secret.data(), secret.size()) == ssize_t{secret_bytes};
  close(file);
  return read_all ? secret : "";
}

std::string& own_secret_file() {
  static auto& name = *new std::string;
  return name;
}
pid_t secret_maker = 0;

void remove_secret() {
  if (secret_maker == getpid()) unlink(own_secret_file().c_str());
}

/// Puts a file with a new secret there, whole, unless another process has been first.
void make_secret(const std::string& name) {
  std::array<char, secret_bytes> secret;
  if (getrandom(secret.data(), secret.size(), 0) != ssize_t{secret_bytes}) return;
  const std::string draft = name + "." + std::to_string(getpid());
  const int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0) return;
  const bool written = write(file, secret.data(), secret.size()) == ssize_t{secret_bytes};
  close(file);
  if (written && link(draft.c_str(), name.c_str()) == 0) {
    own_secret_file() = name;
    secret_maker = getpid();
    std::atexit(remove_secret);
  }
  unlink(draft.c_str());
}

/// What the processes of the job share that others cannot read; empty where the launcher has no private folder: then
/// names are as secret as the launcher's contact address.
std::string shared_secret(const std::string& job) {
  const std::string folder = private_folder();
  if (folder.empty()) return {};
  const std::string name = folder + "/gpudt-" + hash_of("secret", job);
  std::string secret = read_secret(name);
  if (!secret.empty()) return secret;
  make_secret(name);
  return read_secret(name);
}

std::string find_job_name() {
  for (const char* const variable : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})
    if (const char* const value = std::getenv(variable); value != nullptr && *value != '\0') {
      const char* const server = std::getenv("PMIX_SERVER_URI2");
      const std::string job = std::string(variable) + "=" + value + ";" + (server == nullptr ? "" : server);
      return job + ";" + shared_secret(job);
    }
  return {};
}

}  // namespace

const std::string& job_name() {
  static const auto& name = *new std::string(find_job_name());
  return name;
}

std::string name_prefix() {
  return "gpudt-" + std::to_string(geteuid()) + "-";
}

std::string name_of(const std::string& job, int rank, const char* purpose) {
  return "/" + name_prefix() + hash_of(job, std::string(purpose) + "/" + std::to_string(rank));
}

bool is_private(int file, std::string* why) {
  const auto refuse = [&](const std::string& reason) {
    if (why != nullptr) *why = reason;
    return false;
  };
  struct stat status = {};
  if (fstat(file, &status) != 0) return refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return refuse("it is no regular file");
  if (status.st_uid != geteuid()) return refuse("it belongs to user " + std::to_string(status.st_uid));
  if ((status.st_mode & others) != 0) return refuse("other users have access to it");
  return true;
}

}  // namespace gpudt::interpose::peer
