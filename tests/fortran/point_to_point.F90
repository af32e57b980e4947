! Point-to-point communication between device arrays: blocking and persistent sends, completion of several requests,
! statuses, indices and logicals, packing, and what stands for no buffer, no status and the bottom of memory.
#include "interface.inc"
program point_to_point
  USE_MPI
  use, intrinsic :: iso_c_binding, only: c_ptr
  use support
  implicit none
  INCLUDE_MPI
  integer :: ierror, ranks, rank, left, right
  HANDLE(MPI_Datatype) :: blocks
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

  call send_modes()
  call without_status()
  call sendrecv()
  call persistent()
#if !defined(MPICH) || defined(INTERFACE_F08)  /* older interfaces of MPICH 4.0 tell wrong indices of requests */
  call one_of_many()
  call some_of_many()
#endif
  call tests_and_statuses()
  call matched()
  call packed()
  call bottom()
  call truncated()
  call communicators()
#ifndef MPICH  /* whose own procedures these are */
  call failed()
#endif

  call device_free(from)
  call device_free(to)
  call MPI_Type_free(blocks AND_IERROR)
  call MPI_Finalize(ONLY_IERROR)
  if (failures > 0) stop 1

contains

  subroutine send_modes()
    real(dp) :: attached(4 * pattern_size)
    real(dp), pointer, contiguous :: attached_on_device(:)
    ADDRESS(detached)
    integer :: bytes
    call MPI_Buffer_attach(attached, 8 * size(attached) AND_IERROR)
    call send_in_all_modes()
    call MPI_Buffer_detach(detached, bytes AND_IERROR)
    call check(bytes == 8 * size(attached), 'size of the detached buffer')

    attached_on_device => device_array(size(attached))
    call MPI_Buffer_attach(attached_on_device, 8 * size(attached) AND_IERROR)
    call send_in_all_modes()
    call MPI_Buffer_detach(detached, bytes AND_IERROR)
    call check(bytes == 8 * size(attached), 'size of the detached device buffer')
    call check(IS_ADDRESS_OF(detached, attached_on_device), 'address of the detached device buffer')
    call device_free(attached_on_device)
  end subroutine

  subroutine send_in_all_modes()
    HANDLE(MPI_Request) :: request
    STATUS(status)
    integer :: mode, count
    do mode = 1, 8
      call poison(to)
      call MPI_Irecv(to, 1, blocks, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, request AND_IERROR)
      call MPI_Barrier(MPI_COMM_WORLD AND_IERROR)  ! a ready send needs the receive
      call send(mode)
      call MPI_Wait(request, status AND_IERROR)
      call check(request == MPI_REQUEST_NULL, 'request is null after MPI_Wait')
      call check(SOURCE_OF(status) == left, 'source of a receive')
      call check(TAG_OF(status) == mode, 'tag of a receive')
      call MPI_Get_count(status, MPI_DOUBLE_PRECISION, count AND_IERROR)
      call check(count == pattern_blocks * pattern_length, 'count of a receive')
      call verify(to, left, 'data of a send in each mode')
      call MPI_Barrier(MPI_COMM_WORLD AND_IERROR)
    end do
  end subroutine

  subroutine send(mode)
    integer, intent(in) :: mode
    HANDLE(MPI_Request) :: request
    if (mode == 1) call MPI_Send(from, 1, blocks, right, mode, MPI_COMM_WORLD AND_IERROR)
    if (mode == 2) call MPI_Ssend(from, 1, blocks, right, mode, MPI_COMM_WORLD AND_IERROR)
    if (mode == 3) call MPI_Bsend(from, 1, blocks, right, mode, MPI_COMM_WORLD AND_IERROR)
    if (mode == 4) call MPI_Rsend(from, 1, blocks, right, mode, MPI_COMM_WORLD AND_IERROR)
    if (mode <= 4) return
    if (mode == 5) call MPI_Isend(from, 1, blocks, right, mode, MPI_COMM_WORLD, request AND_IERROR)
    if (mode == 6) call MPI_Issend(from, 1, blocks, right, mode, MPI_COMM_WORLD, request AND_IERROR)
    if (mode == 7) call MPI_Ibsend(from, 1, blocks, right, mode, MPI_COMM_WORLD, request AND_IERROR)
    if (mode == 8) call MPI_Irsend(from, 1, blocks, right, mode, MPI_COMM_WORLD, request AND_IERROR)
    call MPI_Wait(request, MPI_STATUS_IGNORE AND_IERROR)
  end subroutine

  ! MPI_STATUS_IGNORE and MPI_STATUSES_IGNORE are no memory to write to.
  subroutine without_status()
    HANDLE(MPI_Request) :: requests(2)
    integer :: before(2)
    before = [TAG_OF(MPI_STATUS_IGNORE), NTH_TAG(MPI_STATUSES_IGNORE, 1)]
    call poison(to)
    call MPI_Isend(from, 1, blocks, right, 77, MPI_COMM_WORLD, requests(1) AND_IERROR)
    call MPI_Recv(to, 1, blocks, left, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE AND_IERROR)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE AND_IERROR)
    call verify(to, left, 'data of MPI_Recv without a status')
    call poison(to)
    call MPI_Irecv(to, 1, blocks, left, 77, MPI_COMM_WORLD, requests(1) AND_IERROR)
    call MPI_Isend(from, 1, blocks, right, 77, MPI_COMM_WORLD, requests(2) AND_IERROR)
    call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE AND_IERROR)
    call verify(to, left, 'data of MPI_Waitall without statuses')
    call check(all([TAG_OF(MPI_STATUS_IGNORE), NTH_TAG(MPI_STATUSES_IGNORE, 1)] == before), 'no status is written')
  end subroutine

  subroutine sendrecv()
    STATUS(status)
    call poison(to)
    call MPI_Sendrecv(from, 1, blocks, right, 7, to, 1, blocks, left, 7, MPI_COMM_WORLD, status AND_IERROR)
    call check(SOURCE_OF(status) == left .and. TAG_OF(status) == 7, 'status of MPI_Sendrecv')
    call verify(to, left, 'data of MPI_Sendrecv')
    call MPI_Sendrecv_replace(to, 1, blocks, right, 8, left, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE AND_IERROR)
    call verify(to, modulo(rank - 2, ranks), 'data of MPI_Sendrecv_replace')
  end subroutine

  subroutine persistent()
    HANDLE(MPI_Request) :: requests(2)
    STATUSES(statuses, 2)
    integer :: round
    call MPI_Recv_init(to, 1, blocks, left, 9, MPI_COMM_WORLD, requests(1) AND_IERROR)
    call MPI_Ssend_init(from, 1, blocks, right, 9, MPI_COMM_WORLD, requests(2) AND_IERROR)
    do round = 1, 3
      call poison(to)
      if (round == 2) then
        call MPI_Start(requests(1) AND_IERROR)
        call MPI_Start(requests(2) AND_IERROR)
      else
        call MPI_Startall(2, requests AND_IERROR)
      end if
      call MPI_Waitall(2, requests, statuses AND_IERROR)
      call check(NTH_TAG(statuses, 1) == 9, 'tag of a persistent receive')
      call check(all(requests /= MPI_REQUEST_NULL), 'persistent requests stay')
      call verify(to, left, 'data of persistent requests')
    end do
    call MPI_Request_free(requests(1) AND_IERROR)
    call MPI_Request_free(requests(2) AND_IERROR)
    call check(all(requests == MPI_REQUEST_NULL), 'requests are null after MPI_Request_free')
  end subroutine

  ! Three receives, tags 1 to 3, of which only number `first` has been sent: MPI_Waitany and MPI_Testany find it.
  subroutine one_of_many()
    HANDLE(MPI_Request) :: requests(3)
    STATUS(status)
    real(dp) :: host
    integer :: first, index
    logical :: flag
    do first = 1, 3
      call poison(to)
      call start_three(requests, host)
      call send_to_self(first)
      if (first == 2) then
        flag = .false.
        do while (.not. flag)
          call MPI_Testany(3, requests, index, flag, status AND_IERROR)
        end do
      else
        call MPI_Waitany(3, requests, index, status AND_IERROR)
      end if
      call check(index == first, 'index of MPI_Waitany and MPI_Testany')
      call check(TAG_OF(status) == first, 'status of MPI_Waitany and MPI_Testany')
      call check(requests(first) == MPI_REQUEST_NULL, 'the completed request is null')
      if (first == 1) call verify(to, rank, 'data of the request that completed first')
      call finish_three(requests, first)
    end do
    call MPI_Waitany(3, requests, index, status AND_IERROR)
    call check(index == MPI_UNDEFINED, 'MPI_Waitany without an active request')
    call MPI_Testany(3, requests, index, flag, status AND_IERROR)
    call check(flag .and. index == MPI_UNDEFINED, 'MPI_Testany without an active request')
  end subroutine

  subroutine some_of_many()
    HANDLE(MPI_Request) :: requests(3)
    STATUSES(statuses, 3)
    real(dp) :: host
    integer :: first, outcount, indices(3)
    do first = 1, 3
      call start_three(requests, host)
      call send_to_self(first)
      outcount = 0
      do while (outcount == 0)
        if (first == 2) then
          call MPI_Testsome(3, requests, outcount, indices, statuses AND_IERROR)
        else
          call MPI_Waitsome(3, requests, outcount, indices, statuses AND_IERROR)
        end if
      end do
      call check(outcount == 1 .and. indices(1) == first, 'index of MPI_Waitsome and MPI_Testsome')
      call check(NTH_TAG(statuses, 1) == first, 'status of MPI_Waitsome and MPI_Testsome')
      call finish_three(requests, first)
    end do
    call MPI_Waitsome(3, requests, outcount, indices, MPI_STATUSES_IGNORE AND_IERROR)
    call check(outcount == MPI_UNDEFINED, 'MPI_Waitsome without an active request')
  end subroutine

  subroutine start_three(requests, host)
    HANDLE(MPI_Request), intent(out) :: requests(3)
    real(dp), intent(inout), asynchronous :: host
    call MPI_Irecv(to, 1, blocks, 0, 1, MPI_COMM_SELF, requests(1) AND_IERROR)
    call MPI_Irecv(to(3), 1, MPI_DOUBLE_PRECISION, 0, 2, MPI_COMM_SELF, requests(2) AND_IERROR)
    call MPI_Irecv(host, 1, MPI_DOUBLE_PRECISION, 0, 3, MPI_COMM_SELF, requests(3) AND_IERROR)
  end subroutine

  subroutine finish_three(requests, but)
    HANDLE(MPI_Request), intent(inout) :: requests(3)
    integer, intent(in) :: but
    integer :: tag
    do tag = 1, 3
      if (tag /= but) call send_to_self(tag)
    end do
    call MPI_Waitall(3, requests, MPI_STATUSES_IGNORE AND_IERROR)
    call check(all(requests == MPI_REQUEST_NULL), 'all requests are complete')
  end subroutine

  subroutine send_to_self(tag)
    integer, intent(in) :: tag
    real(dp) :: host
    host = 1
    if (tag == 1) call MPI_Send(from, 1, blocks, 0, tag, MPI_COMM_SELF AND_IERROR)
    if (tag > 1) call MPI_Send(host, 1, MPI_DOUBLE_PRECISION, 0, tag, MPI_COMM_SELF AND_IERROR)
  end subroutine

  subroutine tests_and_statuses()
    HANDLE(MPI_Request) :: requests(2)
    STATUS(status)
    STATUSES(statuses, 2)
    logical :: flag
    call poison(to)
    call MPI_Irecv(to, 1, blocks, left, 11, MPI_COMM_WORLD, requests(1) AND_IERROR)
    call MPI_Test(requests(1), flag, status AND_IERROR)
    call check(.not. flag, 'MPI_Test before the send')
    call check(requests(1) /= MPI_REQUEST_NULL, 'request stays until it is complete')
    call MPI_Barrier(MPI_COMM_WORLD AND_IERROR)
    call MPI_Issend(from, 1, blocks, right, 11, MPI_COMM_WORLD, requests(2) AND_IERROR)
    flag = .false.
    do while (.not. flag)
      call MPI_Request_get_status(requests(1), flag, status AND_IERROR)
    end do
    call check(TAG_OF(status) == 11, 'status of MPI_Request_get_status')
    flag = .false.
    do while (.not. flag)
      call MPI_Testall(2, requests, flag, statuses AND_IERROR)
    end do
    call check(NTH_TAG(statuses, 1) == 11, 'status of MPI_Testall')
    call check(all(requests == MPI_REQUEST_NULL), 'requests are null after MPI_Testall')
    call verify(to, left, 'data of requests that were tested')

    call MPI_Irecv(to, 1, blocks, left, 12, MPI_COMM_WORLD, requests(1) AND_IERROR)
    call MPI_Cancel(requests(1) AND_IERROR)
    call MPI_Wait(requests(1), status AND_IERROR)
    call MPI_Test_cancelled(status, flag AND_IERROR)
    call check(flag, 'MPI_Cancel of a receive')
  end subroutine

  subroutine matched()
    HANDLE(MPI_Message) :: message
    HANDLE(MPI_Request) :: requests(2)
    STATUS(status)
    integer :: round
    do round = 1, 2
      call poison(to)
      call MPI_Isend(from, 1, blocks, right, 13, MPI_COMM_WORLD, requests(1) AND_IERROR)
      call MPI_Mprobe(left, 13, MPI_COMM_WORLD, message, status AND_IERROR)
      if (round == 1) then
        call MPI_Mrecv(to, 1, blocks, message, status AND_IERROR)
        requests(2) = MPI_REQUEST_NULL
      else
        call MPI_Imrecv(to, 1, blocks, message, requests(2) AND_IERROR)
      end if
      call check(message == MPI_MESSAGE_NULL, 'message is null after its receive')
      call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE AND_IERROR)
      call verify(to, left, 'data of MPI_Mrecv and MPI_Imrecv')
    end do
  end subroutine

  subroutine packed()
    integer, parameter :: bytes = 8 * pattern_blocks * pattern_length
    real(dp), pointer, contiguous :: packed_array(:)
    real(dp) :: host(pattern_blocks * pattern_length), expected(pattern_size)
    integer(MPI_ADDRESS_KIND) :: external_position, external_size
    integer :: position, i
    packed_array => device_array(pattern_size)
    position = 0
    call MPI_Pack(from, 1, blocks, packed_array, bytes, position, MPI_COMM_WORLD AND_IERROR)
    call check(position == bytes, 'position after MPI_Pack')
    call download(host, packed_array)
    expected = [(value(rank, i), i = 1, pattern_size)]
    call check(all(abs(host - pack(expected, in_pattern([(i, i = 1, pattern_size)]))) <= 0), 'data of MPI_Pack')
    call poison(to)
    position = 0
    call MPI_Unpack(packed_array, bytes, position, to, 1, blocks, MPI_COMM_WORLD AND_IERROR)
    call check(position == bytes, 'position after MPI_Unpack')
    call verify(to, rank, 'data of MPI_Unpack')

    call poison(packed_array)
    call poison(to)
    external_size = bytes
    external_position = 0
    call MPI_Pack_external('external32  ', from, 1, blocks, packed_array, external_size, external_position AND_IERROR)
    call check(external_position == external_size, 'position after MPI_Pack_external')
    external_position = 0
    call MPI_Unpack_external('external32', packed_array, external_size, external_position, to, 1, blocks AND_IERROR)
    call check(external_position == external_size, 'position after MPI_Unpack_external')
    call verify(to, rank, 'data of MPI_Unpack_external')
    call device_free(packed_array)
  end subroutine

  ! A type of absolute addresses, from MPI_BOTTOM.
  subroutine bottom()
    integer(MPI_ADDRESS_KIND) :: address(1)
    HANDLE(MPI_Datatype) :: absolute(2)
    integer :: i
    call poison(to)
    call MPI_Get_address(from(1), address(1) AND_IERROR)
    call MPI_Type_create_hindexed(1, [1], address, blocks, absolute(1) AND_IERROR)
    call MPI_Get_address(to(1), address(1) AND_IERROR)
    call MPI_Type_create_hindexed(1, [1], address, blocks, absolute(2) AND_IERROR)
    do i = 1, 2
      call MPI_Type_commit(absolute(i) AND_IERROR)
    end do
    call MPI_Sendrecv(MPI_BOTTOM, 1, absolute(1), right, 14, MPI_BOTTOM, 1, absolute(2), left, 14, MPI_COMM_WORLD, &
                      MPI_STATUS_IGNORE AND_IERROR)
    call verify(to, left, 'data from MPI_BOTTOM')
    do i = 1, 2
      call MPI_Type_free(absolute(i) AND_IERROR)
    end do
  end subroutine

  subroutine truncated()
    HANDLE(MPI_Request) :: request
    integer :: code, class
    call MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN AND_IERROR)
    call MPI_Isend(from, 1, blocks, 0, 1, MPI_COMM_SELF, request AND_IERROR)
    ! Open MPI notices it only of a message that is there already.
    call MPI_Probe(0, 1, MPI_COMM_SELF, MPI_STATUS_IGNORE AND_IERROR)
    call MPI_Recv(to, 1, MPI_DOUBLE_PRECISION, 0, 1, MPI_COMM_SELF, MPI_STATUS_IGNORE, code)
    call MPI_Wait(request, MPI_STATUS_IGNORE AND_IERROR)
    call MPI_Error_class(code, class AND_IERROR)
    call check(class == MPI_ERR_TRUNCATE, 'class of the error of a receive that is too short')
    call MPI_Send(from, 1, MPI_DATATYPE_NULL, 0, 1, MPI_COMM_SELF, code)
    call MPI_Error_class(code, class AND_IERROR)
    call check(class == MPI_ERR_TYPE, 'class of the error of a send without a type')
    call MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL AND_IERROR)
  end subroutine

  ! The communicator may go while its operations are pending.
  subroutine communicators()
    HANDLE(MPI_Comm) :: comms(2)
    HANDLE(MPI_Request) :: requests(2)
    call poison(to)
    call MPI_Comm_dup(MPI_COMM_WORLD, comms(1) AND_IERROR)
    call MPI_Comm_dup(MPI_COMM_WORLD, comms(2) AND_IERROR)
    call MPI_Irecv(to, 1, blocks, left, 15, comms(1), requests(1) AND_IERROR)
    call MPI_Isend(from, 1, blocks, right, 15, comms(1), requests(2) AND_IERROR)
    call MPI_Comm_free(comms(1) AND_IERROR)
    call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE AND_IERROR)
    call MPI_Comm_disconnect(comms(2) AND_IERROR)
    call check(all(comms == MPI_COMM_NULL), 'communicators are null after they are freed')
    call verify(to, left, 'data on a freed communicator')
  end subroutine

  ! What a call would make or tell stays as it was if it fails.
  subroutine failed()
    HANDLE(MPI_Request) :: kept, request
    integer :: code
    logical :: flag
    call MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN AND_IERROR)
    call MPI_Send_init(from, 1, blocks, MPI_PROC_NULL, 16, MPI_COMM_WORLD, kept AND_IERROR)
    request = kept
    call MPI_Isend(from, 1, blocks, ranks, 16, MPI_COMM_WORLD, request, code)
    call check_kept('MPI_Isend', code, request, kept)
    call MPI_Irecv(to, 1, blocks, ranks, 16, MPI_COMM_WORLD, request, code)
    call check_kept('MPI_Irecv', code, request, kept)
    call MPI_Send_init(from, 1, blocks, ranks, 16, MPI_COMM_WORLD, request, code)
    call check_kept('MPI_Send_init', code, request, kept)
    call MPI_Recv_init(to, 1, blocks, ranks, 16, MPI_COMM_WORLD, request, code)
    call check_kept('MPI_Recv_init', code, request, kept)
    call MPI_Ibcast(to, 1, blocks, ranks, MPI_COMM_WORLD, request, code)
    call check_kept('MPI_Ibcast', code, request, kept)
    flag = .true.
    call MPI_Iprobe(ranks, 16, MPI_COMM_WORLD, flag, MPI_STATUS_IGNORE, code)
    call check(flag, 'the flag of MPI_Iprobe that fails')
    call MPI_Request_free(kept AND_IERROR)
    call MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL AND_IERROR)
  end subroutine

  subroutine check_kept(name, code, request, kept)
    character(*), intent(in) :: name
    integer, intent(in) :: code
    HANDLE(MPI_Request), intent(inout) :: request
    HANDLE(MPI_Request), intent(in) :: kept
    call check(code /= MPI_SUCCESS, name // ' fails')
#if !defined(INTERFACE_F08) && !defined(INTERFACE_MODULE)  /* whose intent(out) lets the compiler forget it */
    call check(request == kept, name // ' that fails leaves the request as it was')
#endif
    request = kept
  end subroutine

end program
