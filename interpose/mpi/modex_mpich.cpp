// Nothing is exchanged: MPICH uses PMI, and its launchers have no function in common that adds a key to the exchange.
#include "interpose/mpi/modex.hpp"

namespace gpudt::interpose {

void modex_offer(int) {}

int modex_offered(int) {
  return 0;
}

}  // namespace gpudt::interpose
