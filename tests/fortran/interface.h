! What differs between the three Fortran interfaces of MPI, so that each test is written once. INTERFACE_F08 and
! INTERFACE_MODULE choose `use mpi_f08` and `use mpi`; without either it is mpif.h.
#ifdef INTERFACE_F08
#define USE_MPI use mpi_f08
#define INCLUDE_MPI
#define HANDLE(kind) type(kind)
#define STATUS(name) type(MPI_Status) :: name
#define STATUSES(name, n) type(MPI_Status) :: name(n)
#define SOURCE_OF(name) name%MPI_SOURCE
#define TAG_OF(name) name%MPI_TAG
#define NTH_TAG(name, i) name(i)%MPI_TAG
#define ADDRESS(name) type(c_ptr) :: name
#define IS_ADDRESS_OF(name, array) is_address_of(name, array)
#define AND_IERROR
#define ONLY_IERROR
#else
#ifdef INTERFACE_MODULE
#define USE_MPI use mpi
#define INCLUDE_MPI
#else
#define USE_MPI
#define INCLUDE_MPI include 'mpif.h'
#endif
#define HANDLE(kind) integer
#define STATUS(name) integer :: name(MPI_STATUS_SIZE)
#define STATUSES(name, n) integer :: name(MPI_STATUS_SIZE, n)
#define SOURCE_OF(name) name(MPI_SOURCE)
#define TAG_OF(name) name(MPI_TAG)
#define NTH_TAG(name, i) name(MPI_TAG, i)
#define ADDRESS(name) integer(MPI_ADDRESS_KIND) :: name
#define IS_ADDRESS_OF(name, array) .true.
#define AND_IERROR , ierror
#define ONLY_IERROR ierror
#endif
