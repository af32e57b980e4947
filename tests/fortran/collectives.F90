! Collective communication on device arrays: blocking and nonblocking, in place, reductions, several types in one call,
! neighbourhoods.
#include "interface.inc"
program collectives
  USE_MPI
  use support
  implicit none
  INCLUDE_MPI
  integer, parameter :: bytes = 8 * pattern_size  ! from the pattern of one process to that of the next
  integer :: ierror, ranks, rank, i
  HANDLE(MPI_Datatype) :: vector, blocks
  integer(MPI_ADDRESS_KIND) :: zero = 0, extent = bytes
  real(dp), pointer, contiguous :: one(:), all_out(:), all_in(:)

  call MPI_Init(ONLY_IERROR)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks AND_IERROR)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank AND_IERROR)
  call MPI_Type_vector(pattern_blocks, pattern_length, pattern_stride, MPI_DOUBLE_PRECISION, vector AND_IERROR)
  call MPI_Type_create_resized(vector, zero, extent, blocks AND_IERROR)
  call MPI_Type_commit(blocks AND_IERROR)
  one => device_array(pattern_size)
  all_out => device_array(ranks * pattern_size)
  all_in => device_array(ranks * pattern_size)

  call broadcast()
  call gather_and_scatter()
  call v_forms()
  call alltoall()
  call w_forms()
  call neighbours()
  call reductions()
  call scattered_reductions()
  call unequal_progress()

  call device_free(one)
  call device_free(all_out)
  call device_free(all_in)
  call MPI_Type_free(vector AND_IERROR)
  call MPI_Type_free(blocks AND_IERROR)
  call MPI_Finalize(ONLY_IERROR)
  if (failures > 0) stop 1

contains

  ! The pattern of process number `of` in an array of all.
  function part(array, of)
    real(dp), pointer, contiguous, intent(in) :: array(:)
    integer, intent(in) :: of
    real(dp), pointer, contiguous :: part(:)
    part => array(of * pattern_size + 1:(of + 1) * pattern_size)
  end function

  ! all_in holds what each process has; all_out has for each process what this one has.
  subroutine verify_from_all(what)
    character(*), intent(in) :: what
    integer :: r
    do r = 0, ranks - 1
      call verify(part(all_in, r), r, what)
    end do
    call poison(all_in)
  end subroutine

  subroutine fill_for_all()
    integer :: r
    do r = 0, ranks - 1
      call fill(part(all_out, r), rank)
    end do
  end subroutine

  subroutine wait(request)
    HANDLE(MPI_Request), intent(inout) :: request
    call MPI_Wait(request, MPI_STATUS_IGNORE AND_IERROR)
    call check(request == MPI_REQUEST_NULL, 'request is null after MPI_Wait')
  end subroutine

  subroutine broadcast()
    HANDLE(MPI_Request) :: request
    integer :: root
    do root = 0, ranks - 1
      call poison(one)
      if (rank == root) call fill(one, rank)
      call MPI_Bcast(one, 1, blocks, root, MPI_COMM_WORLD AND_IERROR)
      if (rank /= root) call verify(one, root, 'data of MPI_Bcast')
      call poison(one)
      if (rank == root) call fill(one, rank)
      call MPI_Ibcast(one, 1, blocks, root, MPI_COMM_WORLD, request AND_IERROR)
      call wait(request)
      if (rank /= root) call verify(one, root, 'data of MPI_Ibcast')
    end do
  end subroutine

  subroutine gather_and_scatter()
    HANDLE(MPI_Request) :: request
    call fill(one, rank)
    call poison(all_in)
    call MPI_Gather(one, 1, blocks, all_in, 1, blocks, 0, MPI_COMM_WORLD AND_IERROR)
    if (rank == 0) call verify_from_all('data of MPI_Gather')
    call MPI_Igather(one, 1, blocks, all_in, 1, blocks, 0, MPI_COMM_WORLD, request AND_IERROR)
    call wait(request)
    if (rank == 0) call verify_from_all('data of MPI_Igather')
    if (rank == 0) then
      call fill(part(all_in, 0), 0)
      call MPI_Gather(MPI_IN_PLACE, 1, blocks, all_in, 1, blocks, 0, MPI_COMM_WORLD AND_IERROR)
      do i = 1, ranks - 1
        call verify(part(all_in, i), i, 'data of MPI_Gather in place')
      end do
      call poison(all_in)
    else
      call MPI_Gather(one, 1, blocks, all_in, 1, blocks, 0, MPI_COMM_WORLD AND_IERROR)
    end if

    call MPI_Allgather(one, 1, blocks, all_in, 1, blocks, MPI_COMM_WORLD AND_IERROR)
    call verify_from_all('data of MPI_Allgather')
    call MPI_Iallgather(one, 1, blocks, all_in, 1, blocks, MPI_COMM_WORLD, request AND_IERROR)
    call wait(request)
    call verify_from_all('data of MPI_Iallgather')
    call MPI_Sendrecv(one, 1, blocks, 0, 0, part(all_in, rank), 1, blocks, 0, 0, MPI_COMM_SELF, &
                      MPI_STATUS_IGNORE AND_IERROR)
    call MPI_Allgather(MPI_IN_PLACE, 1, blocks, all_in, 1, blocks, MPI_COMM_WORLD AND_IERROR)
    call verify_from_all('data of MPI_Allgather in place')

    if (rank == 0) then
      do i = 0, ranks - 1
        call fill(part(all_out, i), i)
      end do
    end if
    call poison(one)
    call MPI_Scatter(all_out, 1, blocks, one, 1, blocks, 0, MPI_COMM_WORLD AND_IERROR)
    call verify(one, rank, 'data of MPI_Scatter')
    call poison(one)
    call MPI_Iscatter(all_out, 1, blocks, one, 1, blocks, 0, MPI_COMM_WORLD, request AND_IERROR)
    call wait(request)
    call verify(one, rank, 'data of MPI_Iscatter')
  end subroutine

  ! The places in reverse order, so that the displacements count.
  subroutine v_forms()
    HANDLE(MPI_Request) :: request
    integer :: counts(ranks), reversed(ranks)
    counts = 1
    reversed = [(ranks - i, i = 1, ranks)]
    call fill(one, rank)
    call MPI_Allgatherv(one, 1, blocks, all_in, counts, reversed, blocks, MPI_COMM_WORLD AND_IERROR)
    do i = 0, ranks - 1
      call verify(part(all_in, ranks - 1 - i), i, 'data of MPI_Allgatherv')
    end do
    call poison(all_in)
    call MPI_Igatherv(one, 1, blocks, all_in, counts, reversed, blocks, 0, MPI_COMM_WORLD, request AND_IERROR)
    call wait(request)
    do i = 0, merge(ranks - 1, -1, rank == 0)
      call verify(part(all_in, ranks - 1 - i), i, 'data of MPI_Igatherv')
    end do
    call poison(all_in)
    do i = 0, ranks - 1
      call fill(part(all_out, ranks - 1 - i), i)
    end do
    call poison(one)
    call MPI_Scatterv(all_out, counts, reversed, blocks, one, 1, blocks, 0, MPI_COMM_WORLD AND_IERROR)
    call verify(one, rank, 'data of MPI_Scatterv')
    call fill_for_all()
    call MPI_Alltoallv(all_out, counts, reversed, blocks, all_in, counts, reversed, blocks, MPI_COMM_WORLD AND_IERROR)
    do i = 0, ranks - 1
      call verify(part(all_in, ranks - 1 - i), i, 'data of MPI_Alltoallv')
    end do
    call poison(all_in)
  end subroutine

  subroutine alltoall()
    HANDLE(MPI_Request) :: request
    call fill_for_all()
    call MPI_Alltoall(all_out, 1, blocks, all_in, 1, blocks, MPI_COMM_WORLD AND_IERROR)
    call verify_from_all('data of MPI_Alltoall')
    call MPI_Ialltoall(all_out, 1, blocks, all_in, 1, blocks, MPI_COMM_WORLD, request AND_IERROR)
    call wait(request)
    call verify_from_all('data of MPI_Ialltoall')
  end subroutine

  subroutine w_forms()
    HANDLE(MPI_Datatype) :: types(ranks), unused
    HANDLE(MPI_Request) :: request
    integer :: counts(ranks), displs(ranks), round
    real(dp) :: host(ranks), host_in(ranks)
    counts = 1
    displs = [((i - 1) * bytes, i = 1, ranks)]
    types = blocks
    call fill_for_all()
    call MPI_Alltoallw(all_out, counts, displs, types, all_in, counts, displs, types, MPI_COMM_WORLD AND_IERROR)
    call verify_from_all('data of MPI_Alltoallw')
    do round = 1, 3
      call MPI_Ialltoallw(all_out, counts, displs, types, all_in, counts, displs, types, MPI_COMM_WORLD, &
                          request AND_IERROR)
      call wait(request)
      call verify_from_all('data of MPI_Ialltoallw')
    end do

    ! In place there are no counts, displacements and types to be read.
    unused = MPI_DATATYPE_NULL
    do i = 0, ranks - 1
      call MPI_Sendrecv(part(all_out, i), 1, blocks, 0, 0, part(all_in, i), 1, blocks, 0, 0, MPI_COMM_SELF, &
                        MPI_STATUS_IGNORE AND_IERROR)
    end do
    call MPI_Alltoallw(MPI_IN_PLACE, [0], [0], [unused], all_in, counts, displs, types, MPI_COMM_WORLD AND_IERROR)
    call verify_from_all('data of MPI_Alltoallw in place')

    ! Host memory, whose types MPI itself reads until the call is complete.
    host = rank
    host_in = -1
    types = MPI_DOUBLE_PRECISION
    displs = [((i - 1) * 8, i = 1, ranks)]
    call MPI_Ialltoallw(host, counts, displs, types, host_in, counts, displs, types, MPI_COMM_WORLD, request AND_IERROR)
    call wait(request)
    call check(all(abs(host_in - [(i - 1, i = 1, ranks)]) <= 0), 'host data of MPI_Ialltoallw')
  end subroutine

  ! A ring of processes: what goes out of the first block arrives from the left in the second, and so on.
  subroutine neighbours()
    HANDLE(MPI_Comm) :: ring
    HANDLE(MPI_Request) :: request
    HANDLE(MPI_Datatype) :: types(2)
    integer(MPI_ADDRESS_KIND) :: displs(2)
    real(dp), pointer, contiguous :: out(:), in(:)
    integer :: left, right, counts(2), form
    call MPI_Cart_create(MPI_COMM_WORLD, 1, [ranks], [.true.], .false., ring AND_IERROR)
    call MPI_Cart_shift(ring, 0, 1, left, right AND_IERROR)
    out => device_array(2 * pattern_size)
    in => device_array(2 * pattern_size)
    counts = 1
    displs = [zero, extent]
    types = blocks
    call fill(part(out, 0), rank)
    call fill(part(out, 1), rank)
#if defined(MPICH) && defined(INTERFACE_F08)  /* which takes every topology in the w forms for a distributed graph */
    do form = 1, 2
#else
    do form = 1, 4
#endif
      call poison(in)
      if (form == 1) call MPI_Neighbor_alltoall(out, 1, blocks, in, 1, blocks, ring AND_IERROR)
      if (form == 2) call MPI_Neighbor_allgather(out, 1, blocks, in, 1, blocks, ring AND_IERROR)
      if (form == 3) call MPI_Neighbor_alltoallw(out, counts, displs, types, in, counts, displs, types, ring AND_IERROR)
      if (form == 4) then
        call MPI_Ineighbor_alltoallw(out, counts, displs, types, in, counts, displs, types, ring, request AND_IERROR)
        call wait(request)
      end if
      call verify(part(in, 0), left, 'data from the left neighbour')
      call verify(part(in, 1), right, 'data from the right neighbour')
    end do
    call device_free(out)
    call device_free(in)
    call MPI_Comm_free(ring AND_IERROR)
  end subroutine

  ! The sum over processes first to last of what they have.
  function total(first, last)
    integer, intent(in) :: first, last
    real(dp) :: total(pattern_size)
    integer :: r
    total = 0
    do r = first, last
      total = total + value(r, [(i, i = 1, pattern_size)])
    end do
  end function

  subroutine reductions()
    HANDLE(MPI_Request) :: request
    real(dp), pointer, contiguous :: sum(:)
    sum => device_array(pattern_size)
    call fill(one, rank)
    call MPI_Allreduce(one, sum, pattern_size, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD AND_IERROR)
    call verify_all(sum, total(0, ranks - 1), 'data of MPI_Allreduce')
    call fill(sum, rank)
    call MPI_Allreduce(MPI_IN_PLACE, sum, pattern_size, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD AND_IERROR)
    call verify_all(sum, total(0, ranks - 1), 'data of MPI_Allreduce in place')
    call fill(sum, rank)
    call MPI_Iallreduce(MPI_IN_PLACE, sum, pattern_size, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, &
                        request AND_IERROR)
    call wait(request)
    call verify_all(sum, total(0, ranks - 1), 'data of MPI_Iallreduce in place')

    call fill(sum, rank)
    if (rank == 0) then
      call MPI_Reduce(MPI_IN_PLACE, sum, pattern_size, MPI_DOUBLE_PRECISION, MPI_SUM, 0, MPI_COMM_WORLD AND_IERROR)
      call verify_all(sum, total(0, ranks - 1), 'data of MPI_Reduce in place')
    else
      call MPI_Reduce(one, sum, pattern_size, MPI_DOUBLE_PRECISION, MPI_SUM, 0, MPI_COMM_WORLD AND_IERROR)
      call verify_all(sum, total(rank, rank), 'data that MPI_Reduce must not touch')
    end if
    call MPI_Scan(one, sum, pattern_size, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD AND_IERROR)
    call verify_all(sum, total(0, rank), 'data of MPI_Scan')
    call MPI_Exscan(one, sum, pattern_size, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD AND_IERROR)
    if (rank > 0) call verify_all(sum, total(0, rank - 1), 'data of MPI_Exscan')
    call fill(sum, 0)
    call MPI_Reduce_local(one, sum, pattern_size, MPI_DOUBLE_PRECISION, MPI_SUM AND_IERROR)
    call verify_all(sum, total(0, 0) + total(rank, rank), 'data of MPI_Reduce_local')
    call device_free(sum)
  end subroutine

  ! The last process makes its nonblocking calls when the others have made theirs and sent a message.
  subroutine unequal_progress()
    HANDLE(MPI_Request) :: request, duplication
    HANDLE(MPI_Comm) :: copy
    real(dp), pointer, contiguous :: sum(:)
    integer :: r, got, last
    sum => device_array(pattern_size)
    call fill(sum, rank)
    last = ranks - 1
    do r = 0, last - 1
      if (rank == last) call MPI_Recv(got, 1, MPI_INTEGER, r, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE AND_IERROR)
    end do
    call MPI_Iallreduce(MPI_IN_PLACE, sum, pattern_size, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, &
                        request AND_IERROR)
    call MPI_Comm_idup(MPI_COMM_WORLD, copy, duplication AND_IERROR)
    if (rank /= last) call MPI_Send(rank, 1, MPI_INTEGER, last, 7, MPI_COMM_WORLD AND_IERROR)
    call wait(request)
    call wait(duplication)
    call verify_all(sum, total(0, last), 'data of MPI_Iallreduce before MPI_Comm_idup')
    call MPI_Allreduce(MPI_IN_PLACE, sum, pattern_size, MPI_DOUBLE_PRECISION, MPI_MAX, copy AND_IERROR)
    call verify_all(sum, total(0, last), 'data of MPI_Allreduce on a copy')
    call MPI_Comm_free(copy AND_IERROR)
    call device_free(sum)
  end subroutine

  subroutine scattered_reductions()
    integer :: counts(ranks)
    real(dp), pointer, contiguous :: sum(:)
    sum => device_array(pattern_size)
    counts = pattern_size
    call fill_for_all()
    call MPI_Reduce_scatter(all_out, sum, counts, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD AND_IERROR)
    call verify_all(sum, total(0, ranks - 1), 'data of MPI_Reduce_scatter')
    call poison(sum)
    call MPI_Reduce_scatter_block(all_out, sum, pattern_size, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD AND_IERROR)
    call verify_all(sum, total(0, ranks - 1), 'data of MPI_Reduce_scatter_block')
    call device_free(sum)
  end subroutine

end program
