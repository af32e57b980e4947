// Open MPI 4 tells PMIx in MPI_Init which programming model it is. PMIx tells everybody in the process who has asked
// for that, which Open MPI has, too: it does nothing with the event, but answers it by a thread of its own. If the
// machine is busy and the program short, the answer comes when MPI_Finalize has freed what PMIx would note it in, or
// has unloaded the functions: the process crashes. This file defines PMIx_Register_event_handler, which Open MPI calls
// instead of PMIx's own, and answers these events at once.
#include "interpose/mpi/pmix_openmpi.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <new>
#include <string_view>

#include "interpose/support/export.hpp"
#include "interpose/support/loaded.hpp"

namespace gpudt::interpose {
namespace {

// pmix_event_notification_cbfunc_fn_t, pmix_notification_fn_t and PMIx_Register_event_handler of pmix_common.h.
using Answer = void(int status, void* results, std::size_t count, void (*answered)(int, void*), void* of_answered,
                    void* event);
using Handler = void(std::size_t handler, int status, const void* source, void* infos, std::size_t info_count,
                     void* results, std::size_t result_count, Answer* answer, void* event);
using Register = int(int* statuses, std::size_t count, void* infos, std::size_t info_count, Handler* handler,
                     void (*registered)(int, std::size_t, void*), void* of_registered);

/// Open MPI has one for all events; null until it has registered that.
std::atomic<Handler*> openmpi_handler{nullptr};

void handle(std::size_t handler, int status, const void* source, void* infos, std::size_t info_count, void* results,
            std::size_t result_count, Answer* answer, void* event) {
  if (status == pmix_model_declared) return answer(pmix_success, nullptr, 0, nullptr, nullptr, event);
  openmpi_handler.load()(handler, status, source, infos, info_count, results, result_count, answer, event);
}

/// Whether the function is of Open MPI's component for PMIx: one for the system's PMIx, another for its own.
bool is_of_component(Handler* handler) {
  Dl_info where = {};
  if (dladdr(reinterpret_cast<void*>(handler), &where) == 0) return false;
  const std::string_view path = where.dli_fname;
  return path.substr(path.rfind('/') + 1).starts_with("mca_pmix_");
}

/// What PMIx is to call instead of `handler`.
Handler* stand_in(Handler* handler) {
  if (handler == nullptr || !is_of_component(handler)) return handler;
  Handler* known = nullptr;
  return openmpi_handler.compare_exchange_strong(known, handler) || known == handler ? handle : handler;
}

}  // namespace

void* pmix_function(const void* caller, const char* name) noexcept try {
  void* const beside = function_beside(caller, name);
  return beside != nullptr ? beside : loaded_function(name);
} catch (const std::bad_alloc&) {
  return nullptr;
}

}  // namespace gpudt::interpose

using namespace gpudt::interpose;

/// Called by Open MPI, or by the program itself.
GPUDT_EXPORT int PMIx_Register_event_handler(int* statuses, std::size_t count, void* infos, std::size_t info_count,
                                             Handler* handler, void (*registered)(int, std::size_t, void*),
                                             void* of_registered) {
  auto* const next = pmix_of<Register>(__builtin_return_address(0), "PMIx_Register_event_handler");
  if (next == nullptr) return pmix_not_found;
  return next(statuses, count, infos, info_count, stand_in(handler), registered, of_registered);
}
