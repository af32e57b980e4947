! Halo exchange of a matrix in GPU memory, Fortran 2008: its first and last columns, and its rows as a vector type.
! mpifort halo_f08.f90 -o halo_f08 -lcudart && mpirun -n 4 -x LD_PRELOAD=libgpudt-pmpi.so ./halo_f08
program halo_f08
  use, intrinsic :: iso_c_binding
  use mpi_f08
  implicit none
  integer, parameter :: n = 64, dp = c_double  ! inner cells; around them one more
  integer(c_int), parameter :: to_device = 1, to_host = 2
  interface
    integer(c_int) function cudaMalloc(address, bytes) bind(C, name='cudaMalloc')
      import :: c_int, c_ptr, c_size_t
      type(c_ptr), intent(out) :: address
      integer(c_size_t), value :: bytes
    end function
    integer(c_int) function cudaMemcpy(to, from, bytes, kind) bind(C, name='cudaMemcpy')
      import :: c_int, c_ptr, c_size_t
      type(c_ptr), value :: to, from
      integer(c_size_t), value :: bytes
      integer(c_int), value :: kind
    end function
    integer(c_int) function cudaDeviceSynchronize() bind(C, name='cudaDeviceSynchronize')
      import :: c_int
    end function
  end interface
  real(dp), pointer, contiguous :: grid(:, :)
  real(dp), target :: host(0:n + 1, 0:n + 1)
  type(c_ptr) :: address
  type(MPI_Datatype) :: row
  integer(c_size_t), parameter :: bytes = 8_c_size_t * (n + 2)**2
  integer :: rank, ranks, next, previous, i, j, errors, all_errors

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  next = modulo(rank + 1, ranks)
  previous = modulo(rank - 1, ranks)
  do j = 0, n + 1
    do i = 0, n + 1
      host(i, j) = cell(rank, i, j)
    end do
  end do
  if (cudaMalloc(address, bytes) /= 0) error stop 'cudaMalloc'
  if (cudaMemcpy(address, c_loc(host), bytes, to_device) /= 0) error stop 'cudaMemcpy'
  if (cudaDeviceSynchronize() /= 0) error stop 'cudaDeviceSynchronize'  ! MPI does not wait for the program's own work
  call c_f_pointer(address, grid, [n + 2, n + 2])  ! from 1 on: the inner cells are 2 to n + 1

  call MPI_Type_vector(n, 1, n + 2, MPI_DOUBLE_PRECISION, row)
  call MPI_Type_commit(row)
  ! The last inner column goes to the next process's first halo column; so does the last inner row.
  call MPI_Sendrecv(grid(2, n + 1), n, MPI_DOUBLE_PRECISION, next, 0, &
                    grid(2, 1), n, MPI_DOUBLE_PRECISION, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
  call MPI_Sendrecv(grid(n + 1, 2), 1, row, next, 1, grid(1, 2), 1, row, previous, 1, &
                    MPI_COMM_WORLD, MPI_STATUS_IGNORE)

  if (cudaMemcpy(c_loc(host), address, bytes, to_host) /= 0) error stop 'cudaMemcpy'
  errors = 0
  do i = 1, n
    if (host(i, 0) /= cell(previous, i, n)) errors = errors + 1
    if (host(0, i) /= cell(previous, n, i)) errors = errors + 1
  end do
  call MPI_Allreduce(errors, all_errors, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
  if (rank == 0) print '(a,i0,a)', 'halo_f08: ', ranks, merge(' processes, all right', ' processes, WRONG    ', all_errors == 0)
  call MPI_Type_free(row)
  call MPI_Finalize()
  if (all_errors /= 0) error stop 1

contains

  pure real(dp) function cell(owner, i, j)
    integer, intent(in) :: owner, i, j
    cell = owner * 1.0e6_dp + i * 1.0e3_dp + j
  end function
end program
