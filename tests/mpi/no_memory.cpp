// Every allocation of the library fails once, in turn, in calls of all kinds: each is an MPI error or does not matter,
// never the program's end, and nothing that was started before gets lost.
//
// usage: no_memory calls         one process
//        no_memory init NUMBER   so many allocations of MPI_Init succeed, and none that follows; messages go all the
//        same
#include <cuda_runtime_api.h>
#include <link.h>
#include <mpi.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

extern "C" void* __libc_malloc(std::size_t bytes);

namespace {

struct Range {
  std::uintptr_t begin = 0, end = 0;
};
Range library;  // of libgpudt-pmpi.so, which has a C++ library of its own

/// What fails of the library's allocations in this thread.
struct Failing {
  bool armed = false, lasting = false;
  int passing = 0;  ///< before the first
  int failed = 0;
};
thread_local Failing failing;

int find_library(dl_phdr_info* object, std::size_t, void*) {
  if (std::strstr(object->dlpi_name, "libgpudt-pmpi") == nullptr) return 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    library.begin = object->dlpi_addr + segment.p_vaddr;
    library.end = library.begin + segment.p_memsz;
  }
  return 1;
}

bool fails(const void* caller) {
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  if (!failing.armed || address < library.begin || address >= library.end) return false;
  if (failing.passing-- > 0) return false;
  failing.armed = failing.lasting;
  ++failing.failed;
  return true;
}

}  // namespace

extern "C" void* malloc(std::size_t bytes) {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(bytes);
}

namespace {

constexpr int doubles = 300;
int wrong = 0;

void check(bool right, const char* what, int number) {
  if (right) return;
  ++wrong;
  std::printf("wrong: %s, with allocation %d failing\n", what, number);
  std::fflush(stdout);
}

/// act() with allocation `number` failing; whether it came to that.
bool with_failure(int number, const std::function<void()>& act) {
  failing = {.armed = true, .passing = number};
  act();
  failing.armed = false;
  return failing.failed != 0;
}

/// For each allocation that act() makes.
void each_failing(const char* what, const std::function<void(int)>& act) {
  int number = 0;
  while (with_failure(number, [&] { act(number); })) ++number;
  std::printf("%s: %d allocations\n", what, number);
  std::fflush(stdout);
}

bool tolerable(int code) {
  int error_class = MPI_SUCCESS;
  MPI_Error_class(code, &error_class);
  return error_class == MPI_SUCCESS || error_class == MPI_ERR_NO_MEM || error_class == MPI_ERR_IN_STATUS ||
         error_class == MPI_ERR_OTHER;
}

class Memory {
 public:
  explicit Memory(bool on_device) : on_device_(on_device) {
    if (on_device)
      cudaMalloc(reinterpret_cast<void**>(&data_), bytes);
    else
      data_ = static_cast<double*>(std::malloc(bytes));
    set(-1);
  }
  ~Memory() { on_device_ ? static_cast<void>(cudaFree(data_)) : std::free(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  double* data() const { return data_; }
  void set(double value) const { move(std::vector<double>(doubles, value).data(), true); }
  bool holds(double value) const {
    std::vector<double> now(doubles);
    move(now.data(), false);
    return now == std::vector<double>(doubles, value);
  }

 private:
  static constexpr std::size_t bytes = doubles * sizeof(double);
  void move(double* host, bool in) const {
    cudaMemcpy(in ? data_ : host, in ? host : data_, bytes, cudaMemcpyDefault);
    cudaDeviceSynchronize();
  }
  bool on_device_;
  double* data_ = nullptr;
};

MPI_Comm comm = MPI_COMM_NULL;

int start_receive(const Memory& memory, int tag, MPI_Request* request) {
  return MPI_Irecv(memory.data(), doubles, MPI_DOUBLE, 0, tag, comm, request);
}
int start_send(const Memory& memory, int tag, MPI_Request* request) {
  return MPI_Isend(memory.data(), doubles, MPI_DOUBLE, 0, tag, comm, request);
}

/// Whatever a call has left; true if all of it ends.
void end_all(std::vector<MPI_Request>& requests) {
  failing.armed = false;
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

/// Until nothing is left, by `complete(requests)`, of which one call meets the failure.
using Complete = std::function<int(std::vector<MPI_Request>&)>;

void completion(const char* what, const Complete& complete) {
  each_failing(what, [&](int number) {
    failing.armed = false;
    const Memory out(true), in(true), host_out(false), host_in(false);
    out.set(number);
    host_out.set(number);
    std::vector<MPI_Request> requests(4, MPI_REQUEST_NULL);
    check(start_receive(in, 1, &requests[0]) == MPI_SUCCESS && start_receive(host_in, 2, &requests[1]) == MPI_SUCCESS &&
              start_send(out, 1, &requests[2]) == MPI_SUCCESS && start_send(host_out, 2, &requests[3]) == MPI_SUCCESS,
          "starting", number);
    failing.armed = true;
    const int code = complete(requests);
    const bool failed = failing.failed != 0;
    check(tolerable(code), what, number);
    end_all(requests);
    check(failed || (in.holds(number) && host_in.holds(number)), "the data", number);
  });
}

/// Starts, of which each may fail.
void starting(bool on_device) {
  each_failing("messages", [&](int number) {
    failing.armed = false;
    const Memory out(on_device), in(on_device);
    out.set(number);
    std::vector<MPI_Request> requests(2, MPI_REQUEST_NULL);
    failing.armed = true;
    const int received = start_receive(in, 3, &requests[0]);
    const int sent = received == MPI_SUCCESS ? start_send(out, 3, &requests[1]) : MPI_SUCCESS;
    failing.armed = false;
    check(tolerable(received) && tolerable(sent), "starting", number);
    if (received == MPI_SUCCESS && sent != MPI_SUCCESS) MPI_Cancel(&requests[0]);
    end_all(requests);
    check(received != MPI_SUCCESS || sent != MPI_SUCCESS || failing.failed != 0 || in.holds(number), "the data",
          number);
  });
}

void persistent() {
  each_failing("persistent requests", [&](int number) {
    failing.armed = false;
    const Memory out(true), in(true);
    out.set(number);
    std::vector<MPI_Request> requests(2, MPI_REQUEST_NULL);
    failing.armed = true;
    const int received = MPI_Recv_init(in.data(), doubles, MPI_DOUBLE, 0, 4, comm, &requests[0]);
    const int sent = MPI_Send_init(out.data(), doubles, MPI_DOUBLE, 0, 4, comm, &requests[1]);
    check(tolerable(received) && tolerable(sent), "making", number);
    int codes[2] = {1, 1};
    for (std::size_t i = 0; received == MPI_SUCCESS && sent == MPI_SUCCESS && i < 2; ++i)
      if (i == 0 || codes[0] == MPI_SUCCESS) codes[i] = MPI_Start(&requests[i]);
    failing.armed = false;
    if (codes[0] == MPI_SUCCESS && codes[1] != MPI_SUCCESS) MPI_Cancel(&requests[0]);
    end_all(requests);
    check(codes[1] != MPI_SUCCESS || failing.failed != 0 || in.holds(number), "the data", number);
    for (MPI_Request& request : requests)
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  });
}

/// With a receive under way whose handler must be kept.
void freed_communicator() {
  each_failing("MPI_Comm_free", [&](int number) {
    failing.armed = false;
    MPI_Comm own = MPI_COMM_NULL;
    MPI_Comm_dup(comm, &own);
    const Memory in(true);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Irecv(in.data(), doubles, MPI_DOUBLE, 0, 5, own, &request);
    failing.armed = true;
    check(tolerable(MPI_Comm_free(&own)), "MPI_Comm_free", number);
    failing.armed = false;
    if (own != MPI_COMM_NULL) MPI_Comm_free(&own);
    MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  });
}

/// `waited`: nobody has received the message for so long that its sender moves it.
void probes(bool waited) {
  each_failing(waited ? "probes of a message that has waited" : "probes", [&](int number) {
    failing.armed = false;
    const Memory out(true), in(true);
    out.set(number);
    std::vector<MPI_Request> request(1, MPI_REQUEST_NULL);
    start_send(out, 6, request.data());
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    failing.armed = true;
    int flag = 0;
    for (int i = 0; waited && i < 20; ++i, usleep(50))
      check(tolerable(MPI_Iprobe(0, 98, comm, &flag, &status)), "MPI_Iprobe of another message", number);
    check(tolerable(MPI_Probe(0, 6, comm, &status)), "MPI_Probe", number);
    check(tolerable(MPI_Iprobe(0, 6, comm, &flag, &status)), "MPI_Iprobe", number);
    check(tolerable(MPI_Mprobe(0, 6, comm, &message, &status)), "MPI_Mprobe", number);
    failing.armed = false;
    check(MPI_Mrecv(in.data(), doubles, MPI_DOUBLE, &message, &status) == MPI_SUCCESS, "MPI_Mrecv", number);
    end_all(request);
    check(in.holds(number), "the data", number);
  });
}

template <class Call>
Complete until_done(Call call) {
  return [=](std::vector<MPI_Request>& requests) {
    int code = MPI_SUCCESS;
    for (int done = 0; done < static_cast<int>(requests.size()) && code == MPI_SUCCESS;) code = call(requests, done);
    return code;
  };
}

void calls() {
  MPI_Comm_dup(MPI_COMM_SELF, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  // So that no call finds that there is nothing of the library's.
  const Memory never(true);
  MPI_Request pending = MPI_REQUEST_NULL;
  start_receive(never, 99, &pending);
  int indices[4];
  MPI_Status statuses[4];
  completion("MPI_Waitall", [&](auto& requests) { return MPI_Waitall(4, requests.data(), statuses); });
  completion("MPI_Wait", until_done([](auto& requests, int& done) {
               return MPI_Wait(&requests[static_cast<std::size_t>(done++)], MPI_STATUS_IGNORE);
             }));
  completion("MPI_Waitany", until_done([&](auto& requests, int& done) {
               ++done;
               return MPI_Waitany(4, requests.data(), indices, MPI_STATUS_IGNORE);
             }));
  completion("MPI_Waitsome", until_done([&](auto& requests, int& done) {
               int some = 0;
               const int code = MPI_Waitsome(4, requests.data(), &some, indices, statuses);
               done += some;
               return code;
             }));
  completion("MPI_Test", until_done([&](auto& requests, int& done) {
               int flag = 0;
               const int code = MPI_Test(&requests[static_cast<std::size_t>(done)], &flag, MPI_STATUS_IGNORE);
               done += flag;
               return code;
             }));
  completion("MPI_Testany", until_done([&](auto& requests, int& done) {
               int flag = 0;
               const int code = MPI_Testany(4, requests.data(), indices, &flag, MPI_STATUS_IGNORE);
               done += flag;
               return code;
             }));
  completion("MPI_Testsome", until_done([&](auto& requests, int& done) {
               int some = 0;
               const int code = MPI_Testsome(4, requests.data(), &some, indices, statuses);
               done += some;
               return code;
             }));
  completion("MPI_Testall", until_done([&](auto& requests, int& done) {
               int flag = 0;
               const int code = MPI_Testall(4, requests.data(), &flag, statuses);
               done = flag != 0 ? 4 : 0;
               return code;
             }));
  completion("MPI_Request_get_status", until_done([&](auto& requests, int& done) {
               int flag = 0;
               const int code =
                   MPI_Request_get_status(requests[static_cast<std::size_t>(done)], &flag, MPI_STATUS_IGNORE);
               done += flag;
               return code;
             }));
  for (const bool on_device : {true, false}) starting(on_device);
  persistent();
  freed_communicator();
  for (const bool waited : {false, true}) probes(waited);
  MPI_Cancel(&pending);
  MPI_Wait(&pending, MPI_STATUS_IGNORE);
  MPI_Comm_free(&comm);
}

/// On the host: whether the library is there does not matter.
void exchange() {
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const Memory out(false), in(false);
  out.set(rank);
  const int next = (rank + 1) % size, last = (rank + size - 1) % size;
  const int code = MPI_Sendrecv(out.data(), doubles, MPI_DOUBLE, next, 7, in.data(), doubles, MPI_DOUBLE, last, 7,
                                MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  check(code == MPI_SUCCESS && in.holds(last), "an exchange", -1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  dl_iterate_phdr(find_library, nullptr);
  if (library.end == 0) return 2;
  if (mode == "init") failing = {.armed = true, .lasting = true, .passing = argc > 2 ? std::atoi(argv[2]) : 0};
  MPI_Init(&argc, &argv);
  failing.armed = false;
  mode == "init" ? exchange() : calls();
  MPI_Finalize();
  std::printf("%s\n", wrong == 0 ? "right" : "wrong");
  return wrong == 0 ? 0 : 1;
}
