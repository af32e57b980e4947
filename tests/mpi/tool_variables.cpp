// gpudt's counters as performance variables of MPI's tool information interface, as a tool uses them.
//
// usage: tool_variables list    prints each variable of the MPI library, and each category with its variables
//        tool_variables count   uses gpudt's, before MPI_Init and after MPI_Finalize, too
// under mpirun with two ranks. tool_variables.py runs both.
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int own_variables = 13;
constexpr int count = 100000;  ///< of ints in a message

bool failed = false;

void expect(bool holds, const char* what, int line) {
  if (holds) return;
  std::fprintf(stderr, "tool_variables, line %d: %s failed\n", line, what);
  failed = true;
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)

struct Info {
  std::string name, description;
  int code = 0, verbosity = -1, kind = -1, bind = -1, readonly = -1, continuous = -1, atomic = -1;
  MPI_Datatype type = MPI_DATATYPE_NULL;
};

Info info(int index) {
  Info got;
  char name[400] = "", description[2000] = "";
  int name_length = sizeof name, description_length = sizeof description;
  MPI_T_enum items = MPI_T_ENUM_NULL;
  got.code = MPI_T_pvar_get_info(index, name, &name_length, &got.verbosity, &got.kind, &got.type, &items, description,
                                 &description_length, &got.bind, &got.readonly, &got.continuous, &got.atomic);
  got.name = name;
  got.description = description;
  if (got.code == MPI_SUCCESS) EXPECT(name_length == int(got.name.size()) + 1);
  return got;
}

int number() {
  int variables = -1;
  EXPECT(MPI_T_pvar_get_num(&variables) == MPI_SUCCESS);
  return variables;
}

/// The names of all variables, by index; empty for those that have no more information.
std::vector<std::string> names() {
  std::vector<std::string> all;
  for (int index = 0; index < number(); ++index) all.push_back(info(index).name);
  return all;
}

bool is_own(const std::string& name) {
  return name.rfind("gpudt_", 0) == 0;
}

int index_of(const char* name) {
  int index = -1;
  EXPECT(MPI_T_pvar_get_index(name, MPI_T_PVAR_CLASS_COUNTER, &index) == MPI_SUCCESS);
  return index;
}

// --- list ------------------------------------------------------------------------------------------------------------

void print_categories(const std::vector<std::string>& variables) {
  int categories = 0;
  EXPECT(MPI_T_category_get_num(&categories) == MPI_SUCCESS);
  for (int category = 0; category < categories; ++category) {
    char name[400] = "";
    int length = sizeof name, none = 0, controls = 0, members = 0, below = 0;
    if (MPI_T_category_get_info(category, name, &length, nullptr, &none, &controls, &members, &below) != MPI_SUCCESS)
      continue;
    if (members == 0) continue;
    std::vector<int> indices(std::size_t(members) + 1, -7);
    EXPECT(MPI_T_category_get_pvars(category, members, indices.data()) == MPI_SUCCESS);
    EXPECT(indices.back() == -7);
    for (int member = 0; member < members; ++member)
      std::printf("category %s: %s\n", name, variables.at(std::size_t(indices[std::size_t(member)])).c_str());
  }
}

/// All that a tool sees, but for gpudt's variables: with gpudt as without.
void list() {
  const std::vector<std::string> variables = names();
  int own = 0;
  for (int index = 0; index < int(variables.size()); ++index) {
    const Info got = info(index);
    own += is_own(got.name) ? 1 : 0;
    if (is_own(got.name)) continue;
    int found = -1;
    const bool known =
        got.code == MPI_SUCCESS && MPI_T_pvar_get_index(got.name.c_str(), got.kind, &found) == MPI_SUCCESS;
    std::printf("variable %s: %d %d %d %d %d %d %s\n", got.name.c_str(), got.code, got.verbosity, got.kind, got.bind,
                got.readonly, got.continuous,
                known && variables[std::size_t(found)] == got.name ? "found" : "not found");
  }
  print_categories(variables);
  std::printf("own: %d\n", own);
}

// --- count -----------------------------------------------------------------------------------------------------------

struct Session {
  MPI_T_pvar_session handle = MPI_T_PVAR_SESSION_NULL;
  Session() { EXPECT(MPI_T_pvar_session_create(&handle) == MPI_SUCCESS); }
  ~Session() {
#ifdef OPEN_MPI  // this crashes after MPI_Finalize for a session made before (Open MPI 4.1)
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized != 0) return;
#endif
    EXPECT(MPI_T_pvar_session_free(&handle) == MPI_SUCCESS);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  MPI_T_pvar_handle variable(const char* name) const {
    MPI_T_pvar_handle made = MPI_T_PVAR_HANDLE_NULL;
    int values = -1;
    EXPECT(MPI_T_pvar_handle_alloc(handle, index_of(name), nullptr, &made, &values) == MPI_SUCCESS);
    EXPECT(values == 1);
    return made;
  }
  unsigned long long read(MPI_T_pvar_handle of) const {
    unsigned long long value = 99;
    EXPECT(MPI_T_pvar_read(handle, of, &value) == MPI_SUCCESS);
    return value;
  }
};

void check_own(const std::vector<std::string>& all) {
  int own = 0;
  for (int index = 0; index < int(all.size()); ++index) {
    if (!is_own(all[std::size_t(index)])) continue;
    ++own;
    const Info got = info(index);
    EXPECT(got.kind == MPI_T_PVAR_CLASS_COUNTER && got.type == MPI_UNSIGNED_LONG_LONG);
    EXPECT(got.bind == MPI_T_BIND_NO_OBJECT && got.verbosity == MPI_T_VERBOSITY_USER_BASIC);
    EXPECT(got.readonly == 1 && got.continuous == 0 && got.atomic == 0);
    EXPECT(!got.description.empty());
    EXPECT(index_of(got.name.c_str()) == index);
  }
  EXPECT(own == own_variables);
  int none = -1;
  EXPECT(MPI_T_pvar_get_index("gpudt_bytes_by_gpus", MPI_T_PVAR_CLASS_TIMER, &none) != MPI_SUCCESS);
  EXPECT(MPI_T_pvar_get_index("gpudt_none", MPI_T_PVAR_CLASS_COUNTER, &none) != MPI_SUCCESS);
}

/// Names in less room than they need, and arguments that may be left out.
void check_lengths() {
  const int index = index_of("gpudt_bytes_by_gpus");
  char name[8] = "-------";
  int length = 6;
  EXPECT(MPI_T_pvar_get_info(index, name, &length, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                             nullptr, nullptr, nullptr) == MPI_SUCCESS);
  EXPECT(std::string(name) == "gpudt" && name[6] == '-' && length == int(sizeof "gpudt_bytes_by_gpus"));
  length = 0;
  EXPECT(MPI_T_pvar_get_info(index, nullptr, &length, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                             nullptr, nullptr, nullptr) == MPI_SUCCESS);
  EXPECT(length == int(sizeof "gpudt_bytes_by_gpus"));
}

/// A message between the two ranks, each way.
void exchange() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  void *out = nullptr, *in = nullptr;
  EXPECT(cudaMalloc(&out, count * sizeof(int)) == cudaSuccess && cudaMalloc(&in, count * sizeof(int)) == cudaSuccess);
  EXPECT(MPI_Sendrecv(out, count, MPI_INT, 1 - rank, 0, in, count, MPI_INT, 1 - rank, 0, MPI_COMM_WORLD,
                      MPI_STATUS_IGNORE) == MPI_SUCCESS);
  cudaFree(out);
  cudaFree(in);
}

void check_refusals(const Session& session, MPI_T_pvar_handle bytes) {
  unsigned long long value = 5;
  EXPECT(MPI_T_pvar_write(session.handle, bytes, &value) == MPI_T_ERR_PVAR_NO_WRITE);
  EXPECT(MPI_T_pvar_reset(session.handle, bytes) == MPI_T_ERR_PVAR_NO_WRITE);
  EXPECT(MPI_T_pvar_readreset(session.handle, bytes, &value) == MPI_T_ERR_PVAR_NO_ATOMIC);
  const Session other;
  EXPECT(MPI_T_pvar_read(other.handle, bytes, &value) == MPI_T_ERR_INVALID_SESSION);
  EXPECT(MPI_T_pvar_start(other.handle, bytes) == MPI_T_ERR_INVALID_SESSION);
  MPI_T_pvar_handle made = bytes;
  EXPECT(MPI_T_pvar_handle_free(other.handle, &made) == MPI_T_ERR_INVALID_SESSION && made == bytes);
  int values = 0;
  EXPECT(MPI_T_pvar_handle_alloc(MPI_T_PVAR_SESSION_NULL, index_of("gpudt_bytes_by_gpus"), nullptr, &made, &values) ==
         MPI_T_ERR_INVALID_SESSION);
  EXPECT(value == 5);
}

/// A handle counts while it is started; two handles do so apart from each other.
void check_counts(const Session& session, MPI_T_pvar_handle bytes) {
  constexpr unsigned long long of_one_exchange = 2ULL * count * sizeof(int);
  exchange();
  EXPECT(session.read(bytes) == 0);
  EXPECT(MPI_T_pvar_start(session.handle, bytes) == MPI_SUCCESS);
  EXPECT(MPI_T_pvar_start(session.handle, bytes) == MPI_SUCCESS);
  exchange();
  EXPECT(session.read(bytes) == of_one_exchange);
  EXPECT(MPI_T_pvar_stop(session.handle, bytes) == MPI_SUCCESS);
  exchange();
  EXPECT(session.read(bytes) == of_one_exchange);
  MPI_T_pvar_handle second = session.variable("gpudt_buffers_through_host");
  EXPECT(MPI_T_pvar_start(session.handle, MPI_T_PVAR_ALL_HANDLES) == MPI_SUCCESS);
  exchange();
  EXPECT(session.read(bytes) == 2 * of_one_exchange);
  EXPECT(session.read(second) == 2);
  EXPECT(MPI_T_pvar_stop(session.handle, MPI_T_PVAR_ALL_HANDLES) == MPI_SUCCESS);
  exchange();
  EXPECT(session.read(second) == 2);
  EXPECT(MPI_T_pvar_handle_free(session.handle, &second) == MPI_SUCCESS && second == MPI_T_PVAR_HANDLE_NULL);
}

void check_threads() {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        MPI_T_pvar_session session = MPI_T_PVAR_SESSION_NULL;
        MPI_T_pvar_handle handle = MPI_T_PVAR_HANDLE_NULL;
        int values = 0, index = -1;
        unsigned long long value = 0;
        if (MPI_T_pvar_session_create(&session) != MPI_SUCCESS ||
            MPI_T_pvar_get_index("gpudt_messages_offered", MPI_T_PVAR_CLASS_COUNTER, &index) != MPI_SUCCESS ||
            MPI_T_pvar_handle_alloc(session, index, nullptr, &handle, &values) != MPI_SUCCESS ||
            MPI_T_pvar_start(session, handle) != MPI_SUCCESS ||
            MPI_T_pvar_read(session, handle, &value) != MPI_SUCCESS || value != 0 ||
            MPI_T_pvar_session_free(&session) != MPI_SUCCESS)
          ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT(wrong == 0);
}

/// The variables that there were before MPI_Init have kept their indices, or have gone, whatever MPI_Init has added.
void check_kept(const std::vector<std::string>& before, const std::vector<std::string>& after) {
  EXPECT(after.size() >= before.size());
  for (std::size_t index = 0; index < before.size(); ++index)
    EXPECT(after[index] == before[index] || (after[index].empty() && !is_own(before[index])));
}

void use_counters() {
  std::vector<std::string> before = names();
  check_own(before);
  check_lengths();
  {
    const Session session;
    const MPI_T_pvar_handle bytes = session.variable("gpudt_bytes_through_host");
    EXPECT(session.read(bytes) == 0);
    MPI_Init(nullptr, nullptr);
    check_kept(before, names());
    check_own(names());
    EXPECT(MPI_T_pvar_stop(session.handle, bytes) == MPI_SUCCESS);
    check_counts(session, bytes);
    check_refusals(session, bytes);
    const unsigned long long last = session.read(bytes);
    MPI_Finalize();
    EXPECT(session.read(bytes) == last && last != 0);
    MPI_T_pvar_handle late = session.variable("gpudt_messages_offered");
    EXPECT(session.read(late) == 0);
  }
  check_threads();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  int provided = 0, none = 0;
  EXPECT(MPI_T_pvar_get_num(&none) == MPI_T_ERR_NOT_INITIALIZED);
  EXPECT(MPI_T_init_thread(MPI_THREAD_MULTIPLE, &provided) == MPI_SUCCESS);
  if (mode == "count") {
    use_counters();
#ifdef OPEN_MPI  // MPI_T_finalize crashes after MPI_Finalize (Open MPI 4.1)
    return failed ? 1 : 0;
#endif
  } else {
    MPI_Init(nullptr, nullptr);
    list();
  }
  EXPECT(MPI_T_finalize() == MPI_SUCCESS);
  if (mode != "count") MPI_Finalize();
#ifdef OPEN_MPI  // after MPI_T_finalize the calls of MPICH 4.0 abort
  EXPECT(MPI_T_pvar_get_num(&none) == MPI_T_ERR_NOT_INITIALIZED);
  EXPECT(info(0).code == MPI_T_ERR_NOT_INITIALIZED);
#endif
  return failed ? 1 : 0;
}
