// One-sided communication from device memory: what the rest of the layer needs of it.
#pragma once

namespace gpudt::interpose {

/// At MPI_Finalize: lets go of puts on windows that the program has neither synchronised nor freed.
void one_sided_stop();

}  // namespace gpudt::interpose
