! A library that a program loads with dlopen(RTLD_LOCAL), as Python does with modules in Fortran: neither it nor the MPI
! library's Fortran part is in the global scope. What is called has wrappers that pass the call on to MPI's procedure.
#include "interface.inc"
integer(c_int) function program_main() bind(C)
  USE_MPI
  use, intrinsic :: iso_c_binding, only: c_int
  implicit none
  INCLUDE_MPI
  integer :: ierror, ranks, rank, left, right, failures, got(4), mine(4)
  integer, save, target :: memory(4)
  integer(MPI_ADDRESS_KIND) :: bytes
  HANDLE(MPI_Comm) :: comm
  HANDLE(MPI_Win) :: window
  HANDLE(MPI_File) :: file
  logical :: flag

  failures = 0
  call MPI_Init(ONLY_IERROR)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks AND_IERROR)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank AND_IERROR)
  right = modulo(rank + 1, ranks)
  left = modulo(rank - 1, ranks)
  mine = rank + 1
  got = -1

  call MPI_Comm_split(MPI_COMM_WORLD, 0, rank, comm AND_IERROR)
  call MPI_Sendrecv(mine, 4, MPI_INTEGER, right, 1, got, 4, MPI_INTEGER, left, 1, comm, MPI_STATUS_IGNORE AND_IERROR)
  call check(all(got == left + 1), 'a message on a communicator that was split')
  call MPI_Allreduce(MPI_IN_PLACE, mine, 4, MPI_INTEGER, MPI_SUM, comm AND_IERROR)
  call check(all(mine == ranks * (ranks + 1) / 2), 'a sum in place')
  call MPI_Comm_free(comm AND_IERROR)
  call MPI_Comm_dup(MPI_COMM_WORLD, comm AND_IERROR)
  call MPI_Comm_free(comm AND_IERROR)

  call MPI_Cart_create(MPI_COMM_WORLD, 1, [ranks], [.true.], .false., comm AND_IERROR)
  call MPI_Iprobe(MPI_ANY_SOURCE, 99, comm, flag, MPI_STATUS_IGNORE AND_IERROR)
  call check(.not. flag, 'no message')
  call MPI_Comm_free(comm AND_IERROR)

  call MPI_Win_create(memory, 16_MPI_ADDRESS_KIND, 4, MPI_INFO_NULL, MPI_COMM_WORLD, window AND_IERROR)
  call MPI_Win_get_attr(window, MPI_WIN_SIZE, bytes, flag AND_IERROR)
  call check(flag, 'a window has an attribute')
  call check(bytes == 16, 'the size of a window')
  call MPI_Win_free(window AND_IERROR)

  call MPI_File_open(MPI_COMM_SELF, 'gpudt-fortran-plugin.tmp', ior(MPI_MODE_CREATE + MPI_MODE_RDWR, &
                     MPI_MODE_DELETE_ON_CLOSE), MPI_INFO_NULL, file AND_IERROR)
  call MPI_File_write(file, mine, 4, MPI_INTEGER, MPI_STATUS_IGNORE AND_IERROR)
  call MPI_File_close(file AND_IERROR)
  call MPI_Finalize(ONLY_IERROR)
  program_main = merge(1, 0, failures > 0)

contains

  subroutine check(condition, what)
    logical, intent(in) :: condition
    character(*), intent(in) :: what
    if (condition) return
    failures = failures + 1
    print '(a)', 'FAILED: ' // what
  end subroutine

end function
