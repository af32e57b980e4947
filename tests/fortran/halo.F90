! A grid in GPU memory, cut into strips along both axes of a torus, as Fortran codes exchange its halo: rows by
! MPI_TYPE_VECTOR, columns as they lie, MPI_ISSEND, MPI_IRECV and MPI_WAITALL. Nothing in it knows of gpudt.
#include "interface.inc"
program halo
  USE_MPI
  use support
  implicit none
  INCLUDE_MPI
  integer, parameter :: rows = 37, columns = 23, steps = 4
  real(dp), pointer, contiguous :: line(:), grid(:, :)
  real(dp) :: host(0:rows + 1, 0:columns + 1)
  HANDLE(MPI_Comm) :: torus
  HANDLE(MPI_Datatype) :: row
  integer :: ierror, ranks, rank, dims(2), place(2), step

  call MPI_INIT(ONLY_IERROR)
  call MPI_COMM_SIZE(MPI_COMM_WORLD, ranks AND_IERROR)
  dims = 0
  call MPI_DIMS_CREATE(ranks, 2, dims AND_IERROR)
  call MPI_CART_CREATE(MPI_COMM_WORLD, 2, dims, [.true., .true.], .false., torus AND_IERROR)
  call MPI_COMM_RANK(torus, rank AND_IERROR)
  call MPI_CART_COORDS(torus, rank, 2, place AND_IERROR)
  call MPI_TYPE_VECTOR(columns, 1, rows + 2, MPI_DOUBLE_PRECISION, row AND_IERROR)
  call MPI_TYPE_COMMIT(row AND_IERROR)

  line => device_array((rows + 2) * (columns + 2))
  grid(0:rows + 1, 0:columns + 1) => line
  do step = 1, steps
    call start(step)
    call exchange()
    call compare(step)
  end do

  call device_free(line)
  call MPI_TYPE_FREE(row AND_IERROR)
  call MPI_COMM_FREE(torus AND_IERROR)
  call MPI_FINALIZE(ONLY_IERROR)
  if (failures > 0) stop 1

contains

  subroutine exchange()
    HANDLE(MPI_Request) :: requests(8)
    integer :: up, down, left, right
    call MPI_CART_SHIFT(torus, 0, 1, up, down AND_IERROR)
    call MPI_CART_SHIFT(torus, 1, 1, left, right AND_IERROR)
    call MPI_IRECV(grid(0, 1), 1, row, up, 1, torus, requests(1) AND_IERROR)
    call MPI_IRECV(grid(rows + 1, 1), 1, row, down, 2, torus, requests(2) AND_IERROR)
    call MPI_IRECV(grid(1, 0), rows, MPI_DOUBLE_PRECISION, left, 3, torus, requests(3) AND_IERROR)
    call MPI_IRECV(grid(1, columns + 1), rows, MPI_DOUBLE_PRECISION, right, 4, torus, requests(4) AND_IERROR)
    call MPI_ISSEND(grid(rows, 1), 1, row, down, 1, torus, requests(5) AND_IERROR)
    call MPI_ISSEND(grid(1, 1), 1, row, up, 2, torus, requests(6) AND_IERROR)
    call MPI_ISSEND(grid(1, columns), rows, MPI_DOUBLE_PRECISION, right, 3, torus, requests(7) AND_IERROR)
    call MPI_ISSEND(grid(1, 1), rows, MPI_DOUBLE_PRECISION, left, 4, torus, requests(8) AND_IERROR)
    call MPI_WAITALL(8, requests, MPI_STATUSES_IGNORE AND_IERROR)
    call check(all(requests == MPI_REQUEST_NULL), 'requests are null after MPI_WAITALL')
  end subroutine

  ! A point of the whole grid, wrapped round the torus.
  real(dp) function point(i, j, step)
    integer, intent(in) :: i, j, step
    point = 1000 * modulo(place(1) * rows + i - 1, dims(1) * rows) &
          + modulo(place(2) * columns + j - 1, dims(2) * columns) + 0.25_dp * step
  end function

  subroutine start(step)
    integer, intent(in) :: step
    integer :: i, j
    host = -1
    do j = 1, columns
      do i = 1, rows
        host(i, j) = point(i, j, step)
      end do
    end do
    call upload(line, reshape(host, [size(host)]))
  end subroutine

  subroutine compare(step)
    integer, intent(in) :: step
    real(dp) :: got(size(host)), expected
    integer :: i, j, wrong
    call download(got, line)
    host = reshape(got, shape(host))
    wrong = 0
    do j = 0, columns + 1
      do i = 0, rows + 1
        expected = point(i, j, step)
        if (any(i == [0, rows + 1]) .and. any(j == [0, columns + 1])) expected = -1  ! corners are not exchanged
        if (abs(host(i, j) - expected) > 0) wrong = wrong + 1
      end do
    end do
    call check(wrong == 0, 'points of the grid and its halo')
  end subroutine

end program
