! A tool that counts the calls of Fortran programs by MPI's profiling interface, as mpiP's wrappers for Fortran do, and
! tells their numbers in MPI_Finalize. Its procedures are external ones, as programs call them with mpif.h and `use mpi`.
module counts
  implicit none
  integer, parameter :: counted = 7
  character(13), parameter :: names(counted) = [character(13) :: 'MPI_Send', 'MPI_Isend', 'MPI_Recv', 'MPI_Irecv', &
                                                'MPI_Wait', 'MPI_Allreduce', 'MPI_Bcast']
  integer :: calls(counted) = 0
end module

subroutine MPI_Send(buf, count, datatype, dest, tag, comm, ierror)
  use counts, only: calls
  implicit none
  integer :: buf(*)
  integer :: count, datatype, dest, tag, comm, ierror
  external :: PMPI_Send
  calls(1) = calls(1) + 1
  call PMPI_Send(buf, count, datatype, dest, tag, comm, ierror)
end subroutine

subroutine MPI_Isend(buf, count, datatype, dest, tag, comm, request, ierror)
  use counts, only: calls
  implicit none
  integer :: buf(*)
  integer :: count, datatype, dest, tag, comm, request, ierror
  external :: PMPI_Isend
  calls(2) = calls(2) + 1
  call PMPI_Isend(buf, count, datatype, dest, tag, comm, request, ierror)
end subroutine

subroutine MPI_Recv(buf, count, datatype, source, tag, comm, status, ierror)
  use counts, only: calls
  implicit none
  integer :: buf(*)
  integer :: count, datatype, source, tag, comm, status(*), ierror
  external :: PMPI_Recv
  calls(3) = calls(3) + 1
  call PMPI_Recv(buf, count, datatype, source, tag, comm, status, ierror)
end subroutine

subroutine MPI_Irecv(buf, count, datatype, source, tag, comm, request, ierror)
  use counts, only: calls
  implicit none
  integer :: buf(*)
  integer :: count, datatype, source, tag, comm, request, ierror
  external :: PMPI_Irecv
  calls(4) = calls(4) + 1
  call PMPI_Irecv(buf, count, datatype, source, tag, comm, request, ierror)
end subroutine

subroutine MPI_Wait(request, status, ierror)
  use counts, only: calls
  implicit none
  integer :: request, status(*), ierror
  external :: PMPI_Wait
  calls(5) = calls(5) + 1
  call PMPI_Wait(request, status, ierror)
end subroutine

subroutine MPI_Allreduce(sendbuf, recvbuf, count, datatype, op, comm, ierror)
  use counts, only: calls
  implicit none
  integer :: sendbuf(*)
  integer :: recvbuf(*)
  integer :: count, datatype, op, comm, ierror
  external :: PMPI_Allreduce
  calls(6) = calls(6) + 1
  call PMPI_Allreduce(sendbuf, recvbuf, count, datatype, op, comm, ierror)
end subroutine

subroutine MPI_Bcast(buffer, count, datatype, root, comm, ierror)
  use counts, only: calls
  implicit none
  integer :: buffer(*)
  integer :: count, datatype, root, comm, ierror
  external :: PMPI_Bcast
  calls(7) = calls(7) + 1
  call PMPI_Bcast(buffer, count, datatype, root, comm, ierror)
end subroutine

subroutine MPI_Finalize(ierror)
  use counts
  implicit none
  include 'mpif.h'
  integer :: ierror, rank, i
  external :: PMPI_Finalize
  call PMPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  do i = 1, counted
    print '(a,i0,1x,a,1x,i0)', 'tool: rank ', rank, trim(names(i)), calls(i)
  end do
  flush (6)
  call PMPI_Finalize(ierror)
end subroutine
