// Wrong calls with device memory, of every class of call: the error has the right class, and with the error handlers
// that MPI starts with, the program ends.
//
// usage: wrong_calls list        one line a call: name, MPI function, what MPI_Error_string says of the error's class
//        wrong_calls return      all calls with MPI_ERRORS_RETURN; after each, messages go on as before
//        wrong_calls fatal NAME  one call with MPI_ERRORS_ARE_FATAL, which must not come back
// under mpirun with two ranks. wrong_calls.py runs all of it.
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/mpi_quirks.hpp"

namespace {

constexpr int blocks = 100, room = 4;  ///< of the datatype; elements that a buffer has room for
constexpr std::size_t bytes = std::size_t(room) * 2 * blocks * sizeof(double);

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong_calls: %s failed\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

double* device_memory() {
  void* data = nullptr;
  expect(cudaMalloc(&data, bytes) == cudaSuccess, "cudaMalloc");
  expect(cudaMemset(data, 0, bytes) == cudaSuccess, "cudaMemset");
  expect(cudaDeviceSynchronize() == cudaSuccess, "cudaDeviceSynchronize");
  return static_cast<double*>(data);
}

/// What the calls work with.
struct Setting {
  int rank = 0, peer = 0;
  double *out = nullptr, *in = nullptr;
  MPI_Datatype type = MPI_DATATYPE_NULL, uncommitted = MPI_DATATYPE_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Win window = MPI_WIN_NULL;
  MPI_File file = MPI_FILE_NULL;  ///< opened for reading
  std::string path;
};

/// Sends too much from rank 0; `receive` of too little is rank 1's call.
template <class Receive>
int truncated(const Setting& s, Receive&& receive) {
  if (s.rank == 0) return MPI_Send(s.out, 3, s.type, s.peer, 1, s.comm);
  return receive();
}

int in_epoch(const Setting& s, int (*access)(const Setting&)) {
  MPI_Win_lock(MPI_LOCK_SHARED, s.peer, 0, s.window);
  const int code = access(s);
  const int closed = MPI_Win_unlock(s.peer, s.window);
  return code != MPI_SUCCESS ? code : closed;
}

/// Which ranks do wrong.
enum class Wrong {
  each,      ///< both, or any one alone
  together,  ///< both, since the call looks at the arguments of all
  second,    ///< rank 1; the other one does right
};

struct Case {
  const char* name;
  const char* function;
  int error_class;
  int (*call)(const Setting&);  ///< the code of the first error
  Wrong wrong = Wrong::each;
};

const Case cases[] = {
    {"send-count", "MPI_Send", MPI_ERR_COUNT,
     [](const Setting& s) { return MPI_Send(s.out, -1, s.type, s.peer, 1, s.comm); }},
    {"send-type", "MPI_Ssend", MPI_ERR_TYPE,
     [](const Setting& s) { return MPI_Ssend(s.out, 1, MPI_DATATYPE_NULL, s.peer, 1, s.comm); }},
    {"send-uncommitted", "MPI_Send", MPI_ERR_TYPE,
     [](const Setting& s) { return MPI_Send(s.out, 1, s.uncommitted, s.peer, 1, s.comm); }},
    {"isend-rank", "MPI_Isend", MPI_ERR_RANK,
     [](const Setting& s) {
       MPI_Request request = MPI_REQUEST_NULL;
       return MPI_Isend(s.out, 1, s.type, 99, 1, s.comm, &request);
     }},
    {"irecv-tag", "MPI_Irecv", MPI_ERR_TAG,
     [](const Setting& s) {
       MPI_Request request = MPI_REQUEST_NULL;
       return MPI_Irecv(s.in, 1, s.type, s.peer, -77, s.comm, &request);
     }},
    {"sendrecv-replace-rank", "MPI_Sendrecv_replace", MPI_ERR_RANK,
     [](const Setting& s) {
       return MPI_Sendrecv_replace(s.in, 1, s.type, 99, 1, s.peer, 1, s.comm, MPI_STATUS_IGNORE);
     }},
    {"send-init-count", "MPI_Send_init", MPI_ERR_COUNT,
     [](const Setting& s) {
       MPI_Request request = MPI_REQUEST_NULL;
       return MPI_Send_init(s.out, -1, s.type, s.peer, 1, s.comm, &request);
     }},
    {"start-null", "MPI_Start", MPI_ERR_REQUEST,
     [](const Setting&) {
       MPI_Request request = MPI_REQUEST_NULL;
       return MPI_Start(&request);
     }},
    {"recv-truncated", "MPI_Recv", MPI_ERR_TRUNCATE,
     [](const Setting& s) {
       return truncated(s, [&] { return MPI_Recv(s.in, 2, s.type, s.peer, 1, s.comm, MPI_STATUS_IGNORE); });
     },
     Wrong::second},
    // The function that the message names is the one by which gpudt saw the receive fail.
    {"wait-truncated", "MPI_", MPI_ERR_TRUNCATE,
     [](const Setting& s) {
       return truncated(s, [&] {
         MPI_Request request = MPI_REQUEST_NULL;
         MPI_Irecv(s.in, 2, s.type, s.peer, 1, s.comm, &request);
         return MPI_Wait(&request, MPI_STATUS_IGNORE);
       });
     },
     Wrong::second},
    {"persistent-truncated", "MPI_", MPI_ERR_TRUNCATE,
     [](const Setting& s) {
       return truncated(s, [&] {
         MPI_Request request = MPI_REQUEST_NULL;
         MPI_Recv_init(s.in, 2, s.type, s.peer, 1, s.comm, &request);
         MPI_Start(&request);
         const int code = MPI_Wait(&request, MPI_STATUS_IGNORE);
         MPI_Request_free(&request);
         return code;
       });
     },
     Wrong::second},
    {"pack-room", "MPI_Pack", MPI_ERR_TRUNCATE,
     [](const Setting& s) {
       int position = 0;
       return MPI_Pack(s.out, 2, s.type, s.in, blocks, &position, s.comm);
     }},
    {"unpack-room", "MPI_Unpack", MPI_ERR_TRUNCATE,
     [](const Setting& s) {
       int position = 0;
       return MPI_Unpack(s.out, blocks, &position, s.in, 2, s.type, s.comm);
     }},
    {"bcast-root", "MPI_Bcast", MPI_ERR_ROOT, [](const Setting& s) { return MPI_Bcast(s.in, 1, s.type, 99, s.comm); }},
    {"gather-type", "MPI_Gather", MPI_ERR_TYPE,
     [](const Setting& s) { return MPI_Gather(s.out, 1, MPI_DATATYPE_NULL, s.in, 1, s.type, 0, s.comm); }},
    {"iallgather-count", "MPI_Iallgather", MPI_ERR_COUNT,
     [](const Setting& s) {
       MPI_Request request = MPI_REQUEST_NULL;
       return MPI_Iallgather(s.out, -1, s.type, s.in, 1, s.type, s.comm, &request);
     }},
    {"allreduce-op", "MPI_Allreduce", MPI_ERR_OP,
     [](const Setting& s) { return MPI_Allreduce(s.out, s.in, blocks, MPI_DOUBLE, MPI_OP_NULL, s.comm); }},
    {"reduce-op-for-type", "MPI_Reduce", MPI_ERR_OP,
     [](const Setting& s) { return MPI_Reduce(s.out, s.in, blocks, MPI_DOUBLE, MPI_BAND, 0, s.comm); }},
    {"win-create-unit", "MPI_Win_create", MPI_ERR_DISP,
     [](const Setting& s) {
       MPI_Win window = MPI_WIN_NULL;
       return MPI_Win_create(s.in, bytes, 0, MPI_INFO_NULL, s.comm, &window);
     },
     Wrong::together},
    {"put-range", "MPI_Put", MPI_ERR_RMA_RANGE,
     [](const Setting& s) {
       return in_epoch(
           s, [](const Setting& t) { return MPI_Put(t.out, 1, t.type, t.peer, bytes - 8, 1, t.type, t.window); });
     }},
    {"get-rank", "MPI_Get", MPI_ERR_RANK,
     [](const Setting& s) {
       return in_epoch(s, [](const Setting& t) { return MPI_Get(t.in, 1, t.type, 99, 0, 1, t.type, t.window); });
     }},
    {"accumulate-op", "MPI_Accumulate", MPI_ERR_OP,
     [](const Setting& s) {
       return in_epoch(s, [](const Setting& t) {
         return MPI_Accumulate(t.out, 8, MPI_DOUBLE, t.peer, 0, 8, MPI_DOUBLE, MPI_BAND, t.window);
       });
     }},
    {"put-without-epoch", "MPI_Put", MPI_ERR_RMA_SYNC,
     [](const Setting& s) { return MPI_Put(s.out, 1, s.type, s.peer, 0, 1, s.type, s.window); }},
    {"read-count", "MPI_File_read_at", MPI_ERR_COUNT,
     [](const Setting& s) { return MPI_File_read_at(s.file, 0, s.in, -1, s.type, MPI_STATUS_IGNORE); }},
    {"iread-type", "MPI_File_iread_at", MPI_ERR_TYPE,
     [](const Setting& s) {
       MPI_Request request = MPI_REQUEST_NULL;
       return MPI_File_iread_at(s.file, 0, s.in, 1, MPI_DATATYPE_NULL, &request);
     }},
    {"write-all-count", "MPI_File_write_all", MPI_ERR_COUNT,
     [](const Setting& s) { return MPI_File_write_all(s.file, s.out, -1, s.type, MPI_STATUS_IGNORE); }},
};

constexpr int window_unit = 1;

Setting make_setting() {
  Setting s;
  MPI_Comm_rank(MPI_COMM_WORLD, &s.rank);
  int ranks = 0, gpus = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  expect(ranks == 2, "two ranks");
  expect(cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0, "finding a GPU");
  expect(cudaSetDevice(s.rank % gpus) == cudaSuccess, "cudaSetDevice");
  s.peer = 1 - s.rank;
  s.out = device_memory();
  s.in = device_memory();
  MPI_Type_vector(blocks, 1, 2, MPI_DOUBLE, &s.type);
  MPI_Type_dup(s.type, &s.uncommitted);
  MPI_Type_commit(&s.type);
  MPI_Type_vector(blocks, 1, 3, MPI_DOUBLE, &s.uncommitted);
  MPI_Comm_dup(MPI_COMM_WORLD, &s.comm);
  MPI_Win_create(s.in, bytes, window_unit, MPI_INFO_NULL, s.comm, &s.window);
  int process = static_cast<int>(getpid());
  MPI_Bcast(&process, 1, MPI_INT, 0, MPI_COMM_WORLD);
  s.path = std::filesystem::temp_directory_path() / ("gpudt-wrong-calls-" + std::to_string(process));
  MPI_File_open(MPI_COMM_WORLD, s.path.c_str(), MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE,
                MPI_INFO_NULL, &s.file);
  return s;
}

void set_handlers(const Setting& s, MPI_Errhandler handler) {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);  // of calls without a communicator
  MPI_Comm_set_errhandler(s.comm, handler);
  MPI_Win_set_errhandler(s.window, handler);
  MPI_File_set_errhandler(s.file, handler);
}

void end_setting(Setting& s) {
  MPI_Win_free(&s.window);
  MPI_File_close(&s.file);
  MPI_Comm_free(&s.comm);
  MPI_Type_free(&s.type);
  MPI_Type_free(&s.uncommitted);
  cudaFree(s.out);
  cudaFree(s.in);
}

/// Whether a message, a put and a reduction give what they should.
bool works(const Setting& s, int number) {
  std::vector<double> host(bytes / sizeof(double)), wanted;
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<double>(1000 * (s.rank + 2 * number)) + double(i);
  const auto upload = [&](double* to) {
    cudaMemcpy(to, host.data(), bytes, cudaMemcpyDefault);
    cudaDeviceSynchronize();
  };
  const auto arrived = [&](int from, bool whole) {
    std::vector<double> found(host.size());
    cudaMemcpy(found.data(), s.in, bytes, cudaMemcpyDefault);
    for (std::size_t i = 0; i < 2 * blocks; ++i) {
      const bool moved = whole || i % 2 == 0;
      if (found[i] != (moved ? static_cast<double>(1000 * (from + 2 * number)) + double(i) : 0.0)) return false;
    }
    return true;
  };
  const std::vector<double> zeros(host.size());
  const auto clear = [&] {
    cudaMemcpy(s.in, zeros.data(), bytes, cudaMemcpyDefault);
    cudaDeviceSynchronize();
    MPI_Barrier(s.comm);
  };
  upload(s.out);
  clear();
  int code = MPI_Sendrecv(s.out, 1, s.type, s.peer, 7, s.in, 1, s.type, s.peer, 7, s.comm, MPI_STATUS_IGNORE);
  bool right = code == MPI_SUCCESS && arrived(s.peer, false);
  clear();
  MPI_Win_lock(MPI_LOCK_SHARED, s.peer, 0, s.window);
  code = MPI_Put(s.out, 1, s.type, s.peer, 0, 1, s.type, s.window);
  right = MPI_Win_unlock(s.peer, s.window) == MPI_SUCCESS && code == MPI_SUCCESS && right;
  MPI_Barrier(s.comm);
  right = arrived(s.peer, false) && right;
  clear();
  code = MPI_Allreduce(s.out, s.in, 2 * blocks, MPI_DOUBLE, MPI_MAX, s.comm);
  return code == MPI_SUCCESS && arrived(1, true) && right;
}

bool possible(const Case& one) {
  return gpudt::test::checks_operators || std::strcmp(one.name, "accumulate-op") != 0;
}

int return_all(const Setting& s) {
  int passed = 0, failed = 0;
  set_handlers(s, MPI_ERRORS_RETURN);
  for (const Case& one : cases) {
    if (!possible(one)) continue;
    const int code = one.call(s);
    int found = MPI_SUCCESS;
    MPI_Error_class(code, &found);
    const int wanted = one.wrong == Wrong::second && s.rank == 0 ? MPI_SUCCESS : one.error_class;
    const bool right = found == wanted && works(s, passed + failed);
    if (!right) std::fprintf(stderr, "rank %d: %s: error class %d, not %d\n", s.rank, one.name, found, wanted);
    ++(right ? passed : failed);
  }
  set_handlers(s, MPI_ERRORS_ARE_FATAL);
  std::printf("rank %d: %d passed, %d failed\n", s.rank, passed, failed);
  return failed == 0 ? 0 : 1;
}

/// What a complaint calls the function. Over the standard ABI, MPICH has for those of files one that is behind several.
std::string in_complaints(std::string function) {
#if defined(MPI_ABI_VERSION)
  if (function.starts_with("MPI_File_")) {
    function.replace(0, std::strlen("MPI_"), "MPIOI_");
    if (function.ends_with("_at")) function.resize(function.size() - std::strlen("_at"));
  }
#endif
  return function;
}

void list() {
  for (const Case& one : cases) {
    if (!possible(one)) continue;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(one.error_class, text, &length);
    std::printf("%s\t%s\t%s\n", one.name, in_complaints(one.function).c_str(), text);
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const std::string mode = argc > 1 ? argv[1] : "";
  int result = 2;
  if (mode == "list") {
    list();
    result = 0;
  } else {
    Setting s = make_setting();
    if (mode == "return") {
      result = return_all(s);
    } else if (mode == "fatal" && argc > 2) {
      set_handlers(s, MPI_ERRORS_ARE_FATAL);
      // By one rank alone where that will do. The other one waits, and is ended too.
      for (const Case& one : cases)
        if (std::strcmp(one.name, argv[2]) == 0 && (one.wrong != Wrong::each || s.rank == 0)) one.call(s);
      MPI_Barrier(MPI_COMM_WORLD);
      std::printf("came back\n");
      result = 0;
    }
    end_setting(s);
  }
  MPI_Finalize();
  return result;
}
