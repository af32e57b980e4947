// Threads of the library in processes that are bound to one CPU, as mpirun binds them by default.
#pragma once

#include <sched.h>

#include <string_view>

namespace gpudt::interpose {

/// The CPUs of a list as the kernel writes it ("0-3,8,10-11"); malformed parts are left out.
cpu_set_t cpus_of(std::string_view list);

/// Lets the calling thread, if it is bound to a single CPU, run on all CPUs of the same NUMA node that the process may
/// use. There it would share this CPU with the program's thread, and each would wait for the scheduler to take it from
/// the other: 200 us were seen for a message of 20.
void leave_single_cpu() noexcept;

}  // namespace gpudt::interpose
