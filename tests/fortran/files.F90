! Device arrays written to a file and read back, in each of MPI's ways.
#include "interface.inc"
program files
  USE_MPI
  use support
  implicit none
  INCLUDE_MPI
  integer, parameter :: numbers = pattern_blocks * pattern_length  ! of one process in the file
  integer :: ierror, ranks, rank, way
  HANDLE(MPI_Datatype) :: blocks
  HANDLE(MPI_File) :: file
  HANDLE(MPI_Info) :: info
  integer(MPI_OFFSET_KIND) :: mine, start = 0
  real(dp), pointer, contiguous :: from(:), to(:)
  character(256) :: name

  call get_command_argument(1, name)
  call MPI_Init(ONLY_IERROR)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks AND_IERROR)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank AND_IERROR)
  call MPI_Type_vector(pattern_blocks, pattern_length, pattern_stride, MPI_DOUBLE_PRECISION, blocks AND_IERROR)
  call MPI_Type_commit(blocks AND_IERROR)
  from => device_array(pattern_size)
  to => device_array(pattern_size)
  call fill(from, rank)
  info = MPI_INFO_NULL
  mine = rank * numbers

  do way = 1, 8
    call MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE + MPI_MODE_RDWR + MPI_MODE_DELETE_ON_CLOSE, info, &
                       file AND_IERROR)
    call MPI_File_set_view(file, start, MPI_DOUBLE_PRECISION, MPI_DOUBLE_PRECISION, 'native', info AND_IERROR)
    call poison(to)
    call write(way)
    call MPI_File_sync(file AND_IERROR)
    call MPI_Barrier(MPI_COMM_WORLD AND_IERROR)
    call read(way)
    call verify(to, rank, 'data read from a file')
    call MPI_File_close(file AND_IERROR)
  end do

  call device_free(from)
  call device_free(to)
  call MPI_Type_free(blocks AND_IERROR)
  call MPI_Finalize(ONLY_IERROR)
  if (failures > 0) stop 1

contains

  subroutine expect_all(status)
    STATUS(status)
    integer :: count
    call MPI_Get_count(status, MPI_DOUBLE_PRECISION, count AND_IERROR)
    call check(count == numbers, 'count in the status of a file access')
  end subroutine

  subroutine seek()
    call MPI_File_seek(file, mine, MPI_SEEK_SET AND_IERROR)
  end subroutine

  subroutine write(way)
    integer, intent(in) :: way
    HANDLE(MPI_Request) :: request
    STATUS(status)
    call seek()
    select case (way)
    case (1)
      call MPI_File_write_at(file, mine, from, 1, blocks, status AND_IERROR)
    case (2)
      call MPI_File_write_at_all(file, mine, from, 1, blocks, status AND_IERROR)
    case (3)
      call MPI_File_write(file, from, 1, blocks, status AND_IERROR)
    case (4)
      call MPI_File_write_all(file, from, 1, blocks, status AND_IERROR)
    case (5)
      call MPI_File_iwrite_at(file, mine, from, 1, blocks, request AND_IERROR)
      call MPI_Wait(request, status AND_IERROR)
    case (6)
      call MPI_File_iwrite(file, from, 1, blocks, request AND_IERROR)
      call MPI_Wait(request, status AND_IERROR)
    case (7)
      call MPI_File_write_at_all_begin(file, mine, from, 1, blocks AND_IERROR)
      call MPI_File_write_at_all_end(file, from, status AND_IERROR)
    case (8)
      call MPI_File_write_ordered(file, from, 1, blocks, status AND_IERROR)
    end select
    call expect_all(status)
  end subroutine

  subroutine read(way)
    integer, intent(in) :: way
    HANDLE(MPI_Request) :: request
    STATUS(status)
    call seek()
    select case (way)
    case (1)
      call MPI_File_read_at(file, mine, to, 1, blocks, status AND_IERROR)
    case (2)
      call MPI_File_read_at_all(file, mine, to, 1, blocks, status AND_IERROR)
    case (3)
      call MPI_File_read(file, to, 1, blocks, status AND_IERROR)
    case (4)
      call MPI_File_read_all(file, to, 1, blocks, status AND_IERROR)
    case (5)
      call MPI_File_iread_at(file, mine, to, 1, blocks, request AND_IERROR)
      call MPI_Wait(request, status AND_IERROR)
    case (6)
      call MPI_File_iread(file, to, 1, blocks, request AND_IERROR)
      call MPI_Wait(request, status AND_IERROR)
    case (7)
      call MPI_File_read_at_all_begin(file, mine, to, 1, blocks AND_IERROR)
      call MPI_File_read_at_all_end(file, to, status AND_IERROR)
    case (8)
      call MPI_File_seek_shared(file, start, MPI_SEEK_SET AND_IERROR)
      call MPI_File_read_ordered(file, to, 1, blocks, status AND_IERROR)
    end select
    call expect_all(status)
  end subroutine

end program
