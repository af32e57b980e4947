! MPI in streams from Fortran 2008: the module gpudt_streams beside mpi_f08.
program streams
  use, intrinsic :: iso_c_binding
  use mpi_f08
  use gpudt_streams
  use support
  implicit none
  integer, parameter :: n = 40
  integer(c_int), parameter :: non_blocking = 1
  interface
    integer(c_int) function cudaStreamCreateWithFlags(stream, flags) bind(C, name='cudaStreamCreateWithFlags')
      import :: c_int, c_ptr
      type(c_ptr), intent(out) :: stream
      integer(c_int), value :: flags
    end function
    integer(c_int) function cudaStreamSynchronize(stream) bind(C, name='cudaStreamSynchronize')
      import :: c_int, c_ptr
      type(c_ptr), value :: stream
    end function
    integer(c_int) function cudaStreamDestroy(stream) bind(C, name='cudaStreamDestroy')
      import :: c_int, c_ptr
      type(c_ptr), value :: stream
    end function
  end interface
  type(c_ptr) :: cuda
  type(MPIX_Stream) :: stream
  type(MPI_Comm) :: comm
  type(MPI_Datatype) :: pattern
  type(MPI_Info) :: info
  integer :: ierror, rank, ranks, left, right

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  right = modulo(rank + 1, ranks)
  left = modulo(rank - 1, ranks)
  if (cudaStreamCreateWithFlags(cuda, non_blocking) /= 0) error stop 'cudaStreamCreateWithFlags failed'
  call MPI_Info_create(info)
  call MPI_Info_set(info, 'type', 'cudaStream_t')
  call MPIX_Info_set_hex(info, 'value', cuda, int(c_sizeof(cuda)), ierror)
  call check(ierror == MPI_SUCCESS, 'MPIX_Info_set_hex')
  call MPIX_Stream_create(info, stream, ierror)
  call check(ierror == MPI_SUCCESS, 'MPIX_Stream_create')
  call MPI_Info_free(info)
  call MPIX_Stream_comm_create(MPI_COMM_WORLD, stream, comm)
  call MPIX_Stream_free(stream)
  call check(stream%MPI_VAL == MPIX_STREAM_NULL%MPI_VAL, 'MPIX_Stream_free')
  call MPI_Type_vector(pattern_blocks, pattern_length, pattern_stride, MPI_DOUBLE_PRECISION, pattern)
  call MPI_Type_commit(pattern)

  call messages()
  call persistent()
  call reductions()
  call exchanges()
  call accesses()
  call mistakes()

  call MPI_Type_free(pattern)
  call MPI_Comm_free(comm)
  if (cudaStreamDestroy(cuda) /= 0) error stop 'cudaStreamDestroy failed'
  call MPI_Finalize()
  if (failures > 0) stop 1

contains

  subroutine synchronize()
    if (cudaStreamSynchronize(cuda) /= 0) error stop 'cudaStreamSynchronize failed'
  end subroutine

  subroutine messages()
    real(dp), pointer, contiguous :: in(:), out(:)
    type(MPI_Request) :: requests(2)
    type(MPI_Status), asynchronous :: status, statuses(2)
    integer(MPI_COUNT_KIND), parameter :: one = 1
    integer :: round
    in => device_array(pattern_size)
    out => device_array(pattern_size)
    call fill(out, rank)
    do round = 1, 3
      call poison(in)
      if (round == 1) then
        call MPIX_Isend_enqueue(out, 1, pattern, right, 5, comm, requests(1))
        call MPIX_Recv_enqueue(in, 1, pattern, left, 5, comm, status)
        call MPIX_Wait_enqueue(requests(1), MPI_STATUS_IGNORE)
      else if (round == 2) then
        call MPIX_Isend_enqueue(out, 1, pattern, right, 5, comm, requests(1))
        call MPIX_Irecv_enqueue(in, 1, pattern, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, requests(2))
        call MPIX_Waitall_enqueue(2, requests, statuses)
      else
        call MPIX_Irecv_enqueue(in, one, pattern, left, 5, comm, requests(2))
        call MPIX_Isend_enqueue(out, one, pattern, right, 5, comm, requests(1))
        call MPIX_Waitall_enqueue(2, requests, statuses)
      end if
      call synchronize()
      if (round > 1) status = statuses(2)
      call check(requests(1) == MPI_REQUEST_NULL, 'the request is null')
      call check(status%MPI_SOURCE == left .and. status%MPI_TAG == 5, 'the status')
      call verify(in, left, 'a message')
    end do
    if (modulo(rank, 2) == 0 .and. rank + 1 < ranks) call MPIX_Send_enqueue(out, 1, pattern, rank + 1, 6, comm)
    if (modulo(rank, 2) == 1) then
      call poison(in)
      call MPIX_Recv_enqueue(in, 1, pattern, rank - 1, 6, comm, MPI_STATUS_IGNORE)
      call synchronize()
      call verify(in, left, 'a message sent by MPIX_Send_enqueue')
    end if
    call synchronize()
    call device_free(in)
    call device_free(out)
  end subroutine

  subroutine persistent()
    real(dp), pointer, contiguous :: in(:), out(:)
    type(MPI_Request) :: requests(2)
    integer :: round
    in => device_array(pattern_size)
    out => device_array(pattern_size)
    call MPI_Recv_init(in, 1, pattern, left, 5, comm, requests(1))
    call MPI_Send_init(out, 1, pattern, right, 5, comm, requests(2))
    do round = 1, 3
      call poison(in)
      call fill(out, rank + 10 * round)
      if (round == 2) then
        call MPIX_Start_enqueue(requests(1))
        call MPIX_Start_enqueue(requests(2))
      else
        call MPIX_Startall_enqueue(2, requests)
      end if
      call MPIX_Waitall_enqueue(2, requests, MPI_STATUSES_IGNORE)
      call synchronize()
      call check(requests(1) /= MPI_REQUEST_NULL, 'a persistent request stays')
      call verify(in, left + 10 * round, 'a persistent message')
    end do
    call MPI_Request_free(requests(1))
    call MPI_Request_free(requests(2))
    call device_free(in)
    call device_free(out)
  end subroutine

  subroutine reductions()
    real(dp), pointer, contiguous :: data(:)
    integer :: i
    data => device_array(n)
    call fill(data, rank)
    call MPIX_Allreduce_enqueue(MPI_IN_PLACE, data, n, MPI_DOUBLE_PRECISION, MPI_MAX, comm)
    call synchronize()
    call verify_all(data, [(value(ranks - 1, i), i = 1, n)], 'MPIX_Allreduce_enqueue in place')
    call fill(data, rank)
    call MPIX_Bcast_enqueue(data, int(n, MPI_COUNT_KIND), MPI_DOUBLE_PRECISION, ranks - 1, comm)
    call synchronize()
    call verify_all(data, [(value(ranks - 1, i), i = 1, n)], 'MPIX_Bcast_enqueue')
    call device_free(data)
  end subroutine

  ! Each rank gets the numbers 1 to n of each other one.
  subroutine exchanges()
    real(dp), pointer, contiguous :: in(:), out(:)
    integer :: counts(ranks), places(ranks), from(ranks), i, j
    integer(MPI_ADDRESS_KIND) :: large_places(ranks), large_from(ranks)
    integer(MPI_COUNT_KIND) :: large(ranks)
    type(MPI_Datatype) :: types(ranks)
    real(dp) :: expected(n * ranks)
    in => device_array(n * ranks)
    out => device_array(n)
    call fill(out, rank)
    expected = [((value(j, i), i = 1, n), j = 0, ranks - 1)]
    counts = n
    from = 0
    places = [(n * i, i = 0, ranks - 1)]
    call MPIX_Alltoallv_enqueue(out, counts, from, MPI_DOUBLE_PRECISION, in, counts, places, MPI_DOUBLE_PRECISION, comm)
    counts = 0  ! the program's again
    call synchronize()
    call verify_all(in, expected, 'MPIX_Alltoallv_enqueue')
    call poison(in)
    large = n
    large_from = 0
    large_places = 8 * places
    types = MPI_DOUBLE_PRECISION
    call MPIX_Alltoallw_enqueue(out, large, large_from, types, in, large, large_places, types, comm)
    types = MPI_DATATYPE_NULL
    call synchronize()
    call verify_all(in, expected, 'MPIX_Alltoallw_enqueue with large counts')
    call poison(in)
    call MPIX_Allgather_enqueue(out, n, MPI_DOUBLE_PRECISION, in, n, MPI_DOUBLE_PRECISION, comm)
    call synchronize()
    call verify_all(in, expected, 'MPIX_Allgather_enqueue')
    call device_free(in)
    call device_free(out)
  end subroutine

  subroutine accesses()
    real(dp), pointer, contiguous :: memory(:), data(:)
    type(MPI_Win) :: window
    type(MPI_Request) :: sent
    type(c_ptr) :: address
    integer :: i
    memory => device_array(pattern_size)
    data => device_array(pattern_size)
    call fill(data, rank)
    call MPI_Win_create(memory, int(8 * pattern_size, MPI_ADDRESS_KIND), 8, MPI_INFO_NULL, comm, window)
    call MPI_Win_lock_all(0, window)
    call MPIX_Put_enqueue(data, 1, pattern, right, 0_MPI_ADDRESS_KIND, 1, pattern, window)
    call MPIX_Isend_enqueue(data, 0, MPI_BYTE, right, 7, comm, sent)
    call MPIX_Recv_enqueue(data, 0, MPI_BYTE, left, 7, comm, MPI_STATUS_IGNORE)
    call MPIX_Wait_enqueue(sent, MPI_STATUS_IGNORE)
    call synchronize()
    call verify(memory, left, 'MPIX_Put_enqueue')
    call poison(data)
    call MPIX_Get_enqueue(data, 1, pattern, right, 0_MPI_ADDRESS_KIND, 1, pattern, window)
    call synchronize()
    call verify(data, rank, 'MPIX_Get_enqueue')
    call MPI_Win_unlock_all(window)
    call MPI_Win_free(window)
#ifndef MPICH
    call MPI_Win_allocate(800_MPI_ADDRESS_KIND, 8, MPI_INFO_NULL, comm, address, window)
    call MPI_Win_lock_all(0, window)
    call fill(data, rank)
    call MPIX_Put_enqueue(data, 10, MPI_DOUBLE_PRECISION, right, 0_MPI_ADDRESS_KIND, 10, MPI_DOUBLE_PRECISION, window)
    call MPIX_Get_enqueue(memory, 10, MPI_DOUBLE_PRECISION, right, 0_MPI_ADDRESS_KIND, 10, MPI_DOUBLE_PRECISION, window)
    call synchronize()
    call verify_all(memory(1:10), [(value(rank, i), i = 1, 10)], 'a window of MPI_Win_allocate')
    call MPI_Win_unlock_all(window)
    call MPI_Win_free(window)
#endif
    call device_free(memory)
    call device_free(data)
  end subroutine

  subroutine mistakes()
    integer :: code, class
    real(dp) :: number(1)
    call MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN)
    call MPIX_Bcast_enqueue(number, 1, MPI_DOUBLE_PRECISION, ranks, comm, code)
    call MPI_Error_class(code, class)
    call check(class == MPI_ERR_ROOT, 'a wrong root')
    call MPIX_Send_enqueue(number, -1_MPI_COUNT_KIND, MPI_DOUBLE_PRECISION, 0, 0, comm, code)
    call MPI_Error_class(code, class)
    call check(class == MPI_ERR_COUNT, 'a negative count')
  end subroutine

end program
