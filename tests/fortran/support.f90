! Device memory for Fortran programs, through the C interface of the CUDA runtime, and the checks of the tests.
module support
  use, intrinsic :: iso_c_binding
  implicit none
  private
  public :: dp, device_array, device_free, upload, download, check, failures
  public :: pattern_blocks, pattern_length, pattern_stride, pattern_size, in_pattern
  public :: is_address_of, value, fill, poison, verify, verify_all

  integer, parameter :: dp = c_double
  integer :: failures = 0

  ! The data of most tests: pattern_blocks blocks of pattern_length numbers, pattern_stride apart.
  integer, parameter :: pattern_blocks = 50, pattern_length = 2, pattern_stride = 5
  integer, parameter :: pattern_size = pattern_blocks * pattern_stride
  real(dp), parameter :: poisoned = -1

  integer(c_int), parameter :: host_to_device = 1, device_to_host = 2

  interface
    integer(c_int) function cudaMalloc(pointer, bytes) bind(C, name='cudaMalloc')
      import :: c_int, c_ptr, c_size_t
      type(c_ptr), intent(out) :: pointer
      integer(c_size_t), value :: bytes
    end function
    integer(c_int) function cudaFree(pointer) bind(C, name='cudaFree')
      import :: c_int, c_ptr
      type(c_ptr), value :: pointer
    end function
    integer(c_int) function cudaDeviceSynchronize() bind(C, name='cudaDeviceSynchronize')
      import :: c_int
    end function
    integer(c_int) function cudaMemcpy(to, from, bytes, kind) bind(C, name='cudaMemcpy')
      import :: c_int, c_ptr, c_size_t
      type(c_ptr), value :: to, from
      integer(c_size_t), value :: bytes
      integer(c_int), value :: kind
    end function
  end interface

contains

  subroutine check(condition, what)
    logical, intent(in) :: condition
    character(*), intent(in) :: what
    if (condition) return
    failures = failures + 1
    print '(a)', 'FAILED: ' // what
  end subroutine

  ! n numbers in device memory, poisoned.
  function device_array(n) result(array)
    integer, intent(in) :: n
    real(dp), pointer, contiguous :: array(:)
    type(c_ptr) :: address
    if (cudaMalloc(address, 8_c_size_t * n) /= 0) error stop 'cudaMalloc failed'
    call c_f_pointer(address, array, [n])
    call poison(array)
  end function

  subroutine device_free(array)
    real(dp), pointer, contiguous, intent(in) :: array(:)
    if (cudaFree(c_loc(array(1))) /= 0) error stop 'cudaFree failed'
  end subroutine

  logical function is_address_of(address, array)
    type(c_ptr), intent(in) :: address
    real(dp), pointer, contiguous, intent(in) :: array(:)
    is_address_of = c_associated(address, c_loc(array(1)))
  end function

  subroutine upload(device, host)
    real(dp), pointer, contiguous, intent(in) :: device(:)
    real(dp), target, contiguous, intent(in) :: host(:)
    if (cudaMemcpy(c_loc(device(1)), c_loc(host(1)), 8_c_size_t * size(host), host_to_device) /= 0) &
      error stop 'cudaMemcpy to the device failed'
    ! A copy from pageable memory may still be under way.
    if (cudaDeviceSynchronize() /= 0) error stop 'cudaDeviceSynchronize failed'
  end subroutine

  subroutine download(host, device)
    real(dp), target, contiguous, intent(out) :: host(:)
    real(dp), pointer, contiguous, intent(in) :: device(:)
    if (cudaMemcpy(c_loc(host(1)), c_loc(device(1)), 8_c_size_t * size(host), device_to_host) /= 0) &
      error stop 'cudaMemcpy to the host failed'
  end subroutine

  elemental logical function in_pattern(i)
    integer, intent(in) :: i
    in_pattern = mod(i - 1, pattern_stride) < pattern_length
  end function

  ! What process `rank` has at place i.
  elemental real(dp) function value(rank, i)
    integer, intent(in) :: rank, i
    value = 1000.0_dp * (rank + 1) + i
  end function

  subroutine fill(device, rank)
    real(dp), pointer, contiguous, intent(in) :: device(:)
    integer, intent(in) :: rank
    real(dp) :: host(size(device))
    integer :: i
    host = [(value(rank, i), i = 1, size(device))]
    call upload(device, host)
  end subroutine

  subroutine poison(device)
    real(dp), pointer, contiguous, intent(in) :: device(:)
    real(dp) :: host(size(device))
    host = poisoned
    call upload(device, host)
  end subroutine

  ! The pattern holds what process `rank` has, and the gaps are still poisoned.
  subroutine verify(device, rank, what)
    real(dp), pointer, contiguous, intent(in) :: device(:)
    integer, intent(in) :: rank
    character(*), intent(in) :: what
    integer :: i
    call verify_all(device, [(merge(value(rank, i), poisoned, in_pattern(i)), i = 1, size(device))], what)
  end subroutine

  subroutine verify_all(device, expected, what)
    real(dp), pointer, contiguous, intent(in) :: device(:)
    real(dp), intent(in) :: expected(:)
    character(*), intent(in) :: what
    real(dp) :: host(size(device))
    integer :: wrong
    call download(host, device)
    wrong = count(abs(host - expected) > 0)
    call check(wrong == 0, what)
    if (wrong > 0) print '(a, i0, a, i0)', '  wrong: ', wrong, ' of ', size(host)
  end subroutine

end module
