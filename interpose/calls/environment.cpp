// Starts the library at the end of MPI_Init and stops it in MPI_Finalize; without MPI_Init, from the first session's
// begin to the last one's end.
//
// The library is taken down in the delete callback of an attribute on MPI_COMM_SELF: MPI_Finalize calls these first,
// the latest first, while MPI still works (MPI-4.1 section 11.4.2). So callbacks that the program registered later
// still find gpudt alive, and programs that finalize from Fortran are served too.
#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "base/never_destroyed.hpp"
#include "base/one_thread.hpp"
#include "base/timeline.hpp"
#include "datatype/decode.hpp"
#include "interpose/calls/memory_kinds.hpp"
#include "interpose/calls/other_tools.hpp"
#include "interpose/collectives/call_order.hpp"
#include "interpose/collectives/comm_state.hpp"
#include "interpose/job/launcher.hpp"
#include "interpose/job/presence.hpp"
#include "interpose/mpi/progress.hpp"
#include "interpose/mpi/workarounds.hpp"
#include "interpose/requests/float16_types.hpp"
#include "interpose/requests/matched.hpp"
#include "interpose/requests/operation.hpp"
#include "interpose/requests/persistent.hpp"
#include "interpose/rma/access.hpp"
#include "interpose/streams/enqueue.hpp"
#include "interpose/streams/free_handle.hpp"
#include "interpose/support/config.hpp"
#include "interpose/support/export.hpp"
#include "interpose/support/loaded.hpp"
#include "interpose/support/log.hpp"
#include "interpose/support/mpi_lifetime.hpp"
#include "interpose/support/passed_by.hpp"
#include "interpose/support/report.hpp"
#include "interpose/support/require.hpp"
#include "interpose/support/sessions.hpp"
#include "interpose/transport/check.hpp"
#include "interpose/transport/lazy_room.hpp"
#include "interpose/transport/peer/peer.hpp"

extern "C" int gpudt_active();

namespace gpudt::interpose {
namespace {

int world_rank() {
  int rank = 0;
  if (sessions_alone()) return std::max(0, rank_by_launcher());
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// The MPI library's own function of this name, which ours replaces; null if it has none.
template <class Function>
Function* behind(const char* name) {
  return reinterpret_cast<Function*>(global_function(name));
}

// MPICH aborts if its queries are called before MPI_Init or after MPI_Finalize.
#ifdef OPEN_MPI
constexpr bool answers_at_any_time = true;
#else
constexpr bool answers_at_any_time = false;
#endif

int mpi_query_support(const char* name) {
  auto* const query = behind<int()>(name);
  return query == nullptr || !(answers_at_any_time || mpi_is_active()) ? 0 : query();
}

int mpi_query_cuda_support() {
  return mpi_query_support("MPIX_Query_cuda_support");
}

bool mpi_is_cuda_aware(int forced) {
  return forced >= 0 ? forced != 0 : mpi_query_cuda_support() != 0;
}

Ranks ranks_to_report() {
  if (sessions_alone()) return world_rank() == 0 ? Ranks::own : Ranks::none;
  if (!presence_incomplete()) return Ranks::all;
  return presence_speaks() ? Ranks::own : Ranks::none;
}

void stop() {
  memory_kinds_stop();
  streams_stop();
  bool ended = engine_stop();
  ended = peer_stop() && ended;
  collectives_stop();
  persistent_stop();
  matched_stop();
  if (ended) lazy_rooms_stop();
  one_sided_stop();
  presence_stop();
  if (report_wanted) report_print(ranks_to_report());
  if (const std::string complaint = timeline_stop(); !complaint.empty()) log_warning("GPUDT_TIMELINE: " + complaint);
  active.store(false);
  float16_types_stop();
  datatype::cache_stop();
  if (ended) device::stop();  // otherwise pending receives may still write to staging memory
  leave_sessions();
  log_stop();
}

void go_on_with_sessions();

int stop_with_world(MPI_Comm, int, void*, void*) {
  stop();
  go_on_with_sessions();
  return MPI_SUCCESS;
}

/// Logs that gpudt is off, once on a node for each reason.
void say_off(const std::string& why) {
  const std::string text = "gpudt is off: " + why + ". GPU pointers go to MPI as they are";
  if (presence_says_first(text)) log_error(text);
}

/// Only rank 0 (`speaks`) warns of files that all ranks read; other ranks trace. False on failure.
bool start_device(device::Config config, bool speaks, bool traces) {
  config.warn = speaks ? log_warning : log_trace;
  config.trace = traces ? log_trace : nullptr;
  try {
    device::start(config);
    return true;
  } catch (const device::Error& error) {
    say_off(error.what());
    return false;
  }
}

/// Warns of a PMPI tool that does not see the program's calls.
void warn_of_tool_passed_by() {
  const char* const tool = tool_passed_by();
  if (tool == nullptr) return;
  log_warning(std::string(tool) + " does not see all MPI calls: it would pass them on past gpudt, by dlsym(). " +
              "Name it before gpudt in LD_PRELOAD");
}

enum class Model { world, session };

/// The environment, read before MPI is initialized. Before MPI_Init the constructor announces to the other processes
/// what these must know when it returns.
struct Settings {
  std::vector<std::string> complaints{};
  Config config = read_config(complaints);
  ForcedProtocol forced{};  ///< by GPUDT_PROTOCOL
  /// Whether the program may enqueue operations in streams, which a thread of the library carries out. To find out
  /// takes a look at all names that the loaded libraries import.
  bool enqueues = !config.disable && makes_streams();

  explicit Settings(Model model) {
    if (const std::optional<ForcedProtocol> parsed = parse_protocol(config.protocol)) {
      forced = *parsed;
    } else {
      complaints.push_back(not_understood("GPUDT_PROTOCOL", config.protocol, protocol_values()));
      config.protocol = Config::free_protocol;
    }
    if (model == Model::world && !config.disable) collectives_announce(forced);
  }

  int thread_level(int required) const {
    if (config.disable) return required;
    return enqueues ? MPI_THREAD_MULTIPLE : progress_thread_level(required);
  }
};

/// Empty if memory is short: the program then runs without the library, which logs that.
std::optional<Settings> read_settings(Model model) try {
  note_init();
  return Settings(model);
} catch (const std::exception&) {
  return std::nullopt;
}

void start_timeline(const std::string& prefix, int rank) {
  if (prefix.empty() || timeline_start(prefix + "." + std::to_string(rank) + ".json", rank)) return;
  log_warning("GPUDT_TIMELINE: there is no memory for it");
}

/// Starts the log, and warns of wrong settings.
void introduce(const Settings& settings, int rank) {
  log_start(rank, settings.config.trace);
  if (rank != 0) return;
  for (const std::string& complaint : settings.complaints) log_warning(complaint);
  warn_of_tool_passed_by();
}

constexpr int test_tag = 4;

/// Starts what takes no other process. False if gpudt stays off.
bool start_process(const Settings& settings, int rank) {
  const Config& config = settings.config;
  if (!start_device(config.device, rank == 0, config.trace)) return false;
  start_timeline(config.timeline, rank);  // before there are threads that mark points
  if (const char* const obstacle = engine_start()) {
    say_off(obstacle);
    timeline_stop();
    device::stop();
    return false;
  }
  report_start(config);
  require_start(config.require);
  trace_wanted = config.trace;
  if (config.nvtx && !nvtx_start() && rank == 0)
    log_warning("GPUDT_NVTX has no effect: the library was built where there is no NVTX (of the CUDA Toolkit)");
  const bool cuda_aware = mpi_is_cuda_aware(config.cuda_aware);
  set_forwarding(cuda_aware, config.forward_max, settings.forced);
  datatype::cache_start(bare_self(test_tag));
  return true;
}

void run(const Config& config, const char* since) {
  if (config.check) check_start(config.device.order != device::Order::none);
  active.store(true, std::memory_order_release);
  if (gpudt_active() != 0) memory_kinds_start(!sessions_alone());
  if (tracing()) log_trace(std::string(since) + ": device " + device::runtime_name());
}

/// Ends the library's own session after MPI_Init: MPICH would not finalize in MPI_Finalize while a session exists.
void leave_own_session() {
  datatype::cache_replace_self(bare_self(test_tag));
  leave_sessions();
}

/// The level of thread support that the program has requested, if MPI has been given a higher one only because the
/// program enqueues operations in streams; otherwise negative.
std::atomic<int> requested_level{-1};

void note_level(const std::optional<Settings>& settings, int requested) {
  if (settings && settings->enqueues && requested < MPI_THREAD_MULTIPLE) requested_level.store(requested);
}

/// The program's threads take turns unless it has got MPI_THREAD_MULTIPLE.
void note_threads() {
  int level = MPI_THREAD_MULTIPLE;
  PMPI_Query_thread(&level);
  if (level < MPI_THREAD_MULTIPLE) threads_take_turns();
}

/// Starts the library after MPI_Init. It is running already if there were sessions before.
void start_with_world(const Settings& settings) {
  const int rank = world_rank();
  note_threads();
  const bool running = active.load();
  if (!running) introduce(settings, rank);
  if (settings.config.disable) return;
  presence_start();
  collectives_start();
  if (running)
    leave_own_session();
  else if (!start_process(settings, rank))
    return;
  call_in_finalize(stop_with_world);
  if (std::string(device::runtime_name()) != "none") peer_start(settings.forced, rank, settings.config.unmap_freed);
  run(settings.config, "MPI_Init");
}

/// Calls `start`, and turns gpudt off if that fails. Parts that have been started stop in MPI_Finalize.
void start_if_possible(const std::optional<Settings>& settings, void (*start)(const Settings&)) {
  try {
    if (!settings) {
      log_start(world_rank(), /*trace=*/false);
      throw std::bad_alloc();
    }
    start(*settings);
  } catch (const std::exception& error) {
    active.store(false);
    log_failure("gpudt is off", error.what());
  }
}

int begin_world(int code, const std::optional<Settings>& settings) {
  if (code != MPI_SUCCESS) return code;
  enter_world();
  start_if_possible(settings, start_with_world);
  collectives_tell_started();
  return code;
}

#if defined(GPUDT_MPI_SESSIONS)

/// Starts the library after the first MPI_Session_init, without other processes: these may have no session.
void start_with_session(const Settings& settings) {
  const int rank = std::max(0, rank_by_launcher());
  introduce(settings, rank);
  if (settings.config.disable) return;
  if (enter_sessions() != MPI_SUCCESS) return say_off("it cannot have a session of its own");
  if (start_process(settings, rank))
    run(settings.config, "MPI_Session_init");
  else
    leave_sessions();
}

/// The program's sessions, and whether the library runs because of them.
class Sessions {
 public:
  void begun() {
    const LockGuard lock(mutex_);
    if (++open_ == 1 && !mpi_is_active()) start_if_possible(read_settings(Model::session), start_with_session);
  }
  void outlive_world() {
    const LockGuard lock(mutex_);
    if (open_ > 0) start_if_possible(read_settings(Model::session), start_with_session);
  }
  void ends() {
    const LockGuard lock(mutex_);
    if (open_ > 0 && --open_ == 0 && sessions_alone()) stop();
  }

 private:
  Mutex mutex_;
  int open_ GUARDED_BY(mutex_) = 0;
};
auto& sessions = never_destroyed<Sessions>();

void go_on_with_sessions() {
  sessions.outlive_world();
}

/// Initializes a session with MPI_THREAD_MULTIPLE, whatever level the program requests.
int init_for_threads(MPI_Info info, MPI_Errhandler handler, MPI_Session* session) {
  MPI_Info asked = MPI_INFO_NULL;
  info == MPI_INFO_NULL ? PMPI_Info_create(&asked) : PMPI_Info_dup(info, &asked);
  PMPI_Info_set(asked, "thread_level", "MPI_THREAD_MULTIPLE");
  const int code = PMPI_Session_init(asked, handler, session);
  PMPI_Info_free(&asked);
  return code;
}

#else

void go_on_with_sessions() {}

#endif

}  // namespace
}  // namespace gpudt::interpose

using namespace gpudt::interpose;

#if defined(GPUDT_MPI_SESSIONS)
GPUDT_EXPORT int MPI_Session_init(MPI_Info info, MPI_Errhandler handler, MPI_Session* session) {
  const auto settings = read_settings(Model::session);
  presence_note_session();
  gpudt::expect_threads();  // each session has a level of its own
  const bool needs_threads = settings && settings->thread_level(MPI_THREAD_SINGLE) == MPI_THREAD_MULTIPLE;
  const int code = needs_threads ? init_for_threads(info, handler, session) : PMPI_Session_init(info, handler, session);
  if (code == MPI_SUCCESS) sessions.begun();
  return code;
}

GPUDT_EXPORT int MPI_Session_finalize(MPI_Session* session) {
  if (session != nullptr && *session != MPI_SESSION_NULL) sessions.ends();
  return PMPI_Session_finalize(session);
}
#endif

GPUDT_EXPORT int MPI_Init(int* argc, char*** argv) {
  const auto settings = read_settings(Model::world);
  const int level = settings ? settings->thread_level(MPI_THREAD_SINGLE) : MPI_THREAD_SINGLE;
  int provided = MPI_THREAD_SINGLE;
  const int code = level == MPI_THREAD_SINGLE ? PMPI_Init(argc, argv) : PMPI_Init_thread(argc, argv, level, &provided);
  note_level(settings, MPI_THREAD_SINGLE);
  return begin_world(code, settings);
}

GPUDT_EXPORT int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const auto settings = read_settings(Model::world);
  const int code = PMPI_Init_thread(argc, argv, settings ? settings->thread_level(required) : required, provided);
  note_level(settings, required);
  if (code == MPI_SUCCESS && requested_level.load() >= 0) *provided = std::min(*provided, required);
  return begin_world(code, settings);
}

GPUDT_EXPORT int MPI_Query_thread(int* provided) {
  const int code = PMPI_Query_thread(provided);
  const int requested = requested_level.load(std::memory_order_relaxed);
  if (code == MPI_SUCCESS && requested >= 0) *provided = std::min(*provided, requested);
  return code;
}

GPUDT_EXPORT int MPI_Type_free(MPI_Datatype* type) {
  if (type == nullptr) return PMPI_Type_free(type);  // MPI reports it
  if (is_float16_type(*type)) {
    *type = MPI_DATATYPE_NULL;  // and other handles stay valid
    return MPI_SUCCESS;
  }
  const auto free = [](MPI_Datatype* unused) {
    if (free_type_later(unused)) return int(MPI_SUCCESS);
    if (active.load(std::memory_order_relaxed)) gpudt::datatype::forget_type(*unused);
    return PMPI_Type_free(unused);
  };
  if (!enqueued_calls_live() || *type == MPI_DATATYPE_NULL || gpudt::datatype::is_predefined(*type)) return free(type);
  return free_handle(type, MPI_DATATYPE_NULL, free);
}

/// The library's version, "0.1.0". Also shows a program that the library is loaded.
GPUDT_EXPORT const char* gpudt_version() {
  return GPUDT_VERSION;
}

/// 1 if device buffers are handled now: between MPI_Init and MPI_Finalize, not disabled, with a GPU runtime.
GPUDT_EXPORT int gpudt_active() {
  return active.load() && std::string(gpudt::device::runtime_name()) != "none" ? 1 : 0;
}

/// For the simulated device (device/sim/executor.cpp), which reports why MPI has touched device memory: the reason why
/// device buffers are not handled or, if they are, how calls bypass gpudt. May be called in a signal handler.
GPUDT_EXPORT const char* gpudt_why_not() {
  if (gpudt_active() != 0) return "only kernels, copies and MPI calls can use it; " GPUDT_PASSED_BY;
  if (!init_noted())
    return "gpudt is off in this process: MPI_Init has not come through it (" GPUDT_PASSED_BY
           "), so that MPI cannot use it";
  return "gpudt is off in this process (GPUDT_DISABLE=1, or as said at MPI_Init), so that MPI cannot use it";
}

// Programs that query whether they may pass device buffers pass them if gpudt is active. If it is not, the answer is
// that of the MPI library.
GPUDT_EXPORT int MPIX_Query_cuda_support() {
  return gpudt_active() != 0 ? 1 : mpi_query_cuda_support();
}

// gpudt serves CUDA alone: what the MPI library answers, or no.
GPUDT_EXPORT int MPIX_Query_ze_support() {
  return mpi_query_support("MPIX_Query_ze_support");
}
GPUDT_EXPORT int MPIX_Query_hip_support() {
  return mpi_query_support("MPIX_Query_hip_support");
}
GPUDT_EXPORT int MPIX_Query_rocm_support() {
  return mpi_query_support("MPIX_Query_rocm_support");
}

// MPICH's form of the question. Its mpi.h numbers the kinds of GPU, from CUDA on.
GPUDT_EXPORT int MPIX_GPU_query_support(int gpu_type, int* is_supported) {
  constexpr int cuda = 0;
  auto* const query = mpi_is_active() ? behind<int(int, int*)>("MPIX_GPU_query_support") : nullptr;
  const int code = query == nullptr ? MPI_SUCCESS : query(gpu_type, is_supported);
  if (query == nullptr) *is_supported = 0;
  if (gpu_type == cuda && gpudt_active() != 0) *is_supported = 1;
  return code;
}
