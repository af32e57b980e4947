! One-sided communication between device arrays, and windows of host and of device memory.
#include "interface.inc"
program one_sided
  USE_MPI
  use support
  implicit none
  INCLUDE_MPI
  integer :: ierror, ranks, rank, left, right, i
  HANDLE(MPI_Datatype) :: blocks
  HANDLE(MPI_Win) :: window
  HANDLE(MPI_Info) :: info
  integer(MPI_ADDRESS_KIND) :: zero = 0, window_size = 8 * pattern_size
  real(dp), target, asynchronous :: shown(pattern_size)  ! the window of host memory
  real(dp), pointer, contiguous :: shown_on_device(:)    ! the window of device memory
  logical :: device_window
  real(dp) :: expected(pattern_size)
  real(dp), pointer, contiguous :: from(:), to(:)

  call MPI_Init(ONLY_IERROR)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks AND_IERROR)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank AND_IERROR)
  right = modulo(rank + 1, ranks)
  left = modulo(rank - 1, ranks)
  call MPI_Type_vector(pattern_blocks, pattern_length, pattern_stride, MPI_DOUBLE_PRECISION, blocks AND_IERROR)
  call MPI_Type_commit(blocks AND_IERROR)
  from => device_array(pattern_size)
  to => device_array(pattern_size)
  call fill(from, rank)
  info = MPI_INFO_NULL
  device_window = .false.
  call MPI_Win_create(shown, window_size, 8, info, MPI_COMM_WORLD, window AND_IERROR)
  call all_calls()
  device_window = .true.
  shown_on_device => device_array(pattern_size)
  call MPI_Win_create(shown_on_device, window_size, 8, info, MPI_COMM_WORLD, window AND_IERROR)
  call all_calls()
  call device_free(shown_on_device)

  call device_free(from)
  call device_free(to)
  call MPI_Type_free(blocks AND_IERROR)
  call MPI_Finalize(ONLY_IERROR)
  if (failures > 0) stop 1

contains

  subroutine all_calls()
    call attributes()
    call fences()
    call locks()
    call requests()
    call accumulates()
    call one_number()
    call started_and_posted()
    call MPI_Win_free(window AND_IERROR)
    call check(window == MPI_WIN_NULL, 'window is null after MPI_Win_free')
  end subroutine

  subroutine attributes()
    HANDLE(MPI_Group) :: group, all
    integer(MPI_ADDRESS_KIND) :: found, wanted
    logical :: flag
    integer :: same
    call MPI_Win_get_attr(window, MPI_WIN_BASE, found, flag AND_IERROR)
    if (device_window) call MPI_Get_address(shown_on_device, wanted AND_IERROR)
    if (.not. device_window) call MPI_Get_address(shown, wanted AND_IERROR)
    call check(flag .and. found == wanted, 'attribute MPI_WIN_BASE')
    call MPI_Win_get_attr(window, MPI_WIN_SIZE, found, flag AND_IERROR)
    call check(flag .and. found == window_size, 'attribute MPI_WIN_SIZE')
    call MPI_Win_get_attr(window, MPI_WIN_DISP_UNIT, found, flag AND_IERROR)
    call check(flag .and. found == 8, 'attribute MPI_WIN_DISP_UNIT')
    call MPI_Win_get_attr(window, MPI_WIN_CREATE_FLAVOR, found, flag AND_IERROR)
    call check(flag .and. found == MPI_WIN_FLAVOR_CREATE, 'attribute MPI_WIN_CREATE_FLAVOR')
    call MPI_Win_get_group(window, group AND_IERROR)
    call MPI_Comm_group(MPI_COMM_WORLD, all AND_IERROR)
    call MPI_Group_compare(group, all, same AND_IERROR)
    call check(same == MPI_IDENT, 'group of the window')
    call MPI_Group_free(group AND_IERROR)
    call MPI_Group_free(all AND_IERROR)
  end subroutine

  ! In the window, between two barriers, lies what process `origin` has, `times` times; the gaps are as they were.
  subroutine verify_window(origin, times, what)
    integer, intent(in) :: origin, times
    character(*), intent(in) :: what
    if (device_window) call download(shown, shown_on_device)
    expected = [(merge(times * value(origin, i), 0.0_dp, in_pattern(i)), i = 1, pattern_size)]
    call check(all(abs(shown - expected) <= 0), what)
  end subroutine

  subroutine clear()
    shown = 0
    if (device_window) call upload(shown_on_device, shown)
    call MPI_Barrier(MPI_COMM_WORLD AND_IERROR)
  end subroutine

  subroutine fences()
    call clear()
    call MPI_Win_fence(0, window AND_IERROR)
    call MPI_Put(from, 1, blocks, right, zero, 1, blocks, window AND_IERROR)
    call MPI_Win_fence(0, window AND_IERROR)
    call verify_window(left, 1, 'data of MPI_Put and MPI_Win_fence')
    call poison(to)
    call MPI_Win_fence(0, window AND_IERROR)
    call MPI_Get(to, 1, blocks, right, zero, 1, blocks, window AND_IERROR)
    call MPI_Win_fence(0, window AND_IERROR)
    call verify(to, rank, 'data of MPI_Get and MPI_Win_fence')
  end subroutine

  subroutine locks()
    integer :: form
    do form = 1, 3
      call clear()
      if (form == 1) then
        call MPI_Win_lock(MPI_LOCK_EXCLUSIVE, right, 0, window AND_IERROR)
        call MPI_Put(from, 1, blocks, right, zero, 1, blocks, window AND_IERROR)
        call MPI_Win_unlock(right, window AND_IERROR)
      else
        call MPI_Win_lock_all(0, window AND_IERROR)
        call MPI_Put(from, 1, blocks, right, zero, 1, blocks, window AND_IERROR)
        if (form == 2) call MPI_Win_flush(right, window AND_IERROR)
        if (form == 3) call MPI_Win_flush_local_all(window AND_IERROR)
        call poison(to)
        call MPI_Win_flush_all(window AND_IERROR)
        call MPI_Get(to, 1, blocks, right, zero, 1, blocks, window AND_IERROR)
        call MPI_Win_flush_local(right, window AND_IERROR)
        call verify(to, rank, 'data of MPI_Get and MPI_Win_flush_local')
        call MPI_Win_unlock_all(window AND_IERROR)
      end if
      call MPI_Barrier(MPI_COMM_WORLD AND_IERROR)
      call MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window AND_IERROR)
      call verify_window(left, 1, 'data of MPI_Put under a lock')
      call MPI_Win_unlock(rank, window AND_IERROR)
      call MPI_Barrier(MPI_COMM_WORLD AND_IERROR)
    end do
  end subroutine

  subroutine requests()
    HANDLE(MPI_Request) :: request
    call clear()
    call MPI_Win_lock_all(0, window AND_IERROR)
    call MPI_Rput(from, 1, blocks, right, zero, 1, blocks, window, request AND_IERROR)
    call MPI_Wait(request, MPI_STATUS_IGNORE AND_IERROR)
    call MPI_Win_flush_all(window AND_IERROR)
    call poison(to)
    call MPI_Rget(to, 1, blocks, right, zero, 1, blocks, window, request AND_IERROR)
    call MPI_Wait(request, MPI_STATUS_IGNORE AND_IERROR)
    call check(request == MPI_REQUEST_NULL, 'request is null after MPI_Wait')
    call verify(to, rank, 'data of MPI_Rput and MPI_Rget')
    call MPI_Win_unlock_all(window AND_IERROR)
    call MPI_Barrier(MPI_COMM_WORLD AND_IERROR)
  end subroutine

  subroutine accumulates()
    call clear()
    call MPI_Win_fence(0, window AND_IERROR)
    call MPI_Accumulate(from, 1, blocks, right, zero, 1, blocks, MPI_SUM, window AND_IERROR)
    call MPI_Win_fence(0, window AND_IERROR)
    call verify_window(left, 1, 'data of MPI_Accumulate')
    call poison(to)
    call MPI_Win_fence(0, window AND_IERROR)
    call MPI_Get_accumulate(from, 1, blocks, to, 1, blocks, right, zero, 1, blocks, MPI_SUM, window AND_IERROR)
    call MPI_Win_fence(0, window AND_IERROR)
    call verify(to, rank, 'result of MPI_Get_accumulate')
    call verify_window(left, 2, 'data of MPI_Get_accumulate')
  end subroutine

  ! One number of the window and the first of the arrays.
  subroutine one_number()
    real(dp), pointer, contiguous :: compare(:)
    integer, target, asynchronous :: counter
    HANDLE(MPI_Win) :: counters
    integer(MPI_ADDRESS_KIND) :: counter_size = 4
    real(dp) :: first(1)
    call clear()
    call poison(to)
    call MPI_Win_fence(0, window AND_IERROR)
    call MPI_Fetch_and_op(from, to, MPI_DOUBLE_PRECISION, right, zero, MPI_REPLACE, window AND_IERROR)
    call MPI_Win_fence(0, window AND_IERROR)
    call download(first, to)
    call check(abs(first(1)) <= 0, 'result of MPI_Fetch_and_op')
    if (device_window) call download(shown, shown_on_device)
    call check(abs(shown(1) - value(left, 1)) <= 0, 'data of MPI_Fetch_and_op')

    ! Integers are all that MPI compares: the first half of a number, and zero.
    compare => device_array(1)
    call upload(compare, [0.0_dp])
    counter = 0
    call MPI_Win_create(counter, counter_size, 4, info, MPI_COMM_WORLD, counters AND_IERROR)
    call MPI_Win_fence(0, counters AND_IERROR)
    call MPI_Compare_and_swap(from, compare, to, MPI_INTEGER, right, zero, counters AND_IERROR)
    call MPI_Win_fence(0, counters AND_IERROR)
    call check(counter == first_half(value(left, 1)), 'data of MPI_Compare_and_swap')
    call download(first, to)
    call check(first_half(first(1)) == 0, 'result of MPI_Compare_and_swap')
    call MPI_Win_free(counters AND_IERROR)
    call device_free(compare)
  end subroutine

  integer function first_half(number)
    real(dp), intent(in) :: number
    integer :: halves(2)
    halves = transfer(number, halves)
    first_half = halves(1)
  end function

  subroutine started_and_posted()
    HANDLE(MPI_Group) :: world, neighbour(2)
    call clear()
    call MPI_Comm_group(MPI_COMM_WORLD, world AND_IERROR)
    call MPI_Group_incl(world, 1, [left], neighbour(1) AND_IERROR)
    call MPI_Group_incl(world, 1, [right], neighbour(2) AND_IERROR)
    call MPI_Win_post(neighbour(1), 0, window AND_IERROR)
    call MPI_Win_start(neighbour(2), 0, window AND_IERROR)
    call MPI_Put(from, 1, blocks, right, zero, 1, blocks, window AND_IERROR)
    call MPI_Win_complete(window AND_IERROR)
    call MPI_Win_wait(window AND_IERROR)
    call verify_window(left, 1, 'data of MPI_Put and MPI_Win_complete')
    call MPI_Group_free(world AND_IERROR)
    call MPI_Group_free(neighbour(1) AND_IERROR)
    call MPI_Group_free(neighbour(2) AND_IERROR)
  end subroutine

end program
