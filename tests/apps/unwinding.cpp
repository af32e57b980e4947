// A program whose exceptions, and threads that end, go through MPI calls on host memory: nothing of it may be seen that
// is not so without gpudt.
#include <mpi.h>
#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <ctime>
#include <stdexcept>

namespace {

MPI_Comm comm = MPI_COMM_NULL;
int wrong = 0;

/// MPICH, in a program of several threads, keeps a lock when it is left so.
#ifdef OPEN_MPI
constexpr int level = MPI_THREAD_MULTIPLE;
#else
constexpr int level = MPI_THREAD_SINGLE;
#endif

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("WRONG: %s\n", what);
  ++wrong;
}

enum class Handler { throws, ends_thread };
std::atomic<Handler> handler{Handler::throws};

void handle(MPI_Comm*, int*, ...) {
  if (handler == Handler::ends_thread) pthread_exit(nullptr);
  throw std::runtime_error("of the program");
}

constexpr int nobody = 1000;
char buffer[1000];

template <class Call>
void expect_thrown(Call call, const char* what) {
  bool thrown = false;
  try {
    call();
  } catch (const std::runtime_error&) {
    thrown = true;
  }
  expect(thrown, what);
}

/// Its destructor runs when the thread ends, as those of objects in MPI's callers would.
struct Mark {
  std::atomic<bool>& reached;
  ~Mark() { reached = true; }
};
std::atomic<bool> unwound{false};

void* fail_in_thread(void*) {
  const Mark mark{unwound};
  MPI_Recv(buffer, 4, MPI_INT, nobody, 0, comm, MPI_STATUS_IGNORE);
  return buffer;
}

void* receive_in_thread(void*) {
  const Mark mark{unwound};
  MPI_Recv(buffer, sizeof buffer, MPI_BYTE, 0, 77, comm, MPI_STATUS_IGNORE);
  return buffer;
}

/// What the thread leaves; if it has not been cancelled in ten seconds, it is given its message.
void* cancelled(pthread_t thread) {
  const timespec moment{0, 100'000'000};
  nanosleep(&moment, nullptr);  // it waits by now, most probably
  pthread_cancel(thread);
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 10;
  void* left = nullptr;
  if (pthread_timedjoin_np(thread, &left, &until) == 0) return left;
  char message[sizeof buffer] = {};
  MPI_Send(message, sizeof message, MPI_BYTE, 0, 77, comm);
  pthread_join(thread, &left);
  return left;
}

void end_threads() {
  pthread_t thread{};
  void* left = buffer;
  handler = Handler::ends_thread;
  pthread_create(&thread, nullptr, fail_in_thread, nullptr);
  pthread_join(thread, &left);
  expect(left == nullptr && unwound, "a thread ends in an error handler");
  unwound = false;
  pthread_create(&thread, nullptr, receive_in_thread, nullptr);
  expect(cancelled(thread) == PTHREAD_CANCELED && unwound, "a thread is cancelled in MPI_Recv");
}

}  // namespace

int main(int argc, char** argv) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, level, &provided);
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Errhandler errhandler = MPI_ERRHANDLER_NULL;
  MPI_Comm_create_errhandler(handle, &errhandler);
  MPI_Comm_set_errhandler(comm, errhandler);
  MPI_Datatype vector = MPI_DATATYPE_NULL;
  MPI_Type_vector(2, 1, 2, MPI_INT, &vector);
  MPI_Type_commit(&vector);
  for (const MPI_Datatype type : {MPI_INT, vector}) {
    MPI_Request request = MPI_REQUEST_NULL;
    expect_thrown([=] { MPI_Send(buffer, 4, type, nobody, 0, comm); }, "MPI_Send");
    expect_thrown([=] { MPI_Recv(buffer, 4, type, nobody, 0, comm, MPI_STATUS_IGNORE); }, "MPI_Recv");
    expect_thrown([&] { MPI_Irecv(buffer, 4, type, nobody, 0, comm, &request); }, "MPI_Irecv");
    expect_thrown([=] { MPI_Bcast(buffer, 4, type, nobody, comm); }, "MPI_Bcast");
  }
  if (level == MPI_THREAD_MULTIPLE) end_threads();
  MPI_Type_free(&vector);
  MPI_Errhandler_free(&errhandler);
  std::printf("%s\n", wrong == 0 ? "ok" : "FAIL");
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
