! Messages and collectives on device memory, verified, between two ranks; counts its own calls, and tells their numbers
! at the end in the words of the tools that do the same (tool.f90, tests/apps/tool.c).
#include "interface.inc"
program tool_program
  USE_MPI
  use support
  implicit none
  INCLUDE_MPI
  integer, parameter :: rounds = 4
  integer :: ierror, rank, other, round, i
  HANDLE(MPI_Datatype) :: blocks
  HANDLE(MPI_Request) :: requests(2)
  real(dp), pointer, contiguous :: from(:), to(:)

  call MPI_Init(ONLY_IERROR)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank AND_IERROR)
  other = 1 - rank
  call MPI_Type_vector(pattern_blocks, pattern_length, pattern_stride, MPI_DOUBLE_PRECISION, blocks AND_IERROR)
  call MPI_Type_commit(blocks AND_IERROR)
  from => device_array(pattern_size)
  to => device_array(pattern_size)

  do round = 1, rounds
    call fill(from, rank)
    call poison(to)
    if (rank == 0) call MPI_Send(from, 1, blocks, other, 1, MPI_COMM_WORLD AND_IERROR)
    call MPI_Recv(to, 1, blocks, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE AND_IERROR)
    if (rank == 1) call MPI_Send(from, 1, blocks, other, 1, MPI_COMM_WORLD AND_IERROR)
    call verify(to, other, 'MPI_Recv')

    call poison(to)
    call MPI_Irecv(to, 1, blocks, other, 2, MPI_COMM_WORLD, requests(1) AND_IERROR)
    call MPI_Isend(from, 1, blocks, other, 2, MPI_COMM_WORLD, requests(2) AND_IERROR)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE AND_IERROR)
    call MPI_Wait(requests(2), MPI_STATUS_IGNORE AND_IERROR)
    call verify(to, other, 'MPI_Irecv')

    if (rank == 0) call fill(to, 5)
    if (rank == 1) call poison(to)
    call MPI_Bcast(to, 1, blocks, 0, MPI_COMM_WORLD AND_IERROR)
    if (rank == 1) call verify(to, 5, 'MPI_Bcast')

    call fill(from, 7)
    call MPI_Allreduce(from, to, pattern_size, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD AND_IERROR)
    call verify_all(to, [(value(7, i), i = 1, pattern_size)], 'MPI_Allreduce')
  end do
  call tell('MPI_Send', rounds)
  call tell('MPI_Isend', rounds)
  call tell('MPI_Recv', rounds)
  call tell('MPI_Irecv', rounds)
  call tell('MPI_Wait', 2 * rounds)
  call tell('MPI_Allreduce', rounds)
  call tell('MPI_Bcast', rounds)
  flush (6)

  call device_free(from)
  call device_free(to)
  call MPI_Type_free(blocks AND_IERROR)
  call MPI_Finalize(ONLY_IERROR)
  if (failures > 0) stop 1

contains

  subroutine tell(name, calls)
    character(*), intent(in) :: name
    integer, intent(in) :: calls
    print '(a,i0,1x,a,1x,i0)', 'program: rank ', rank, name, calls
  end subroutine
end program
