#!/usr/bin/env python3
"""MPI from Python: mpi4py's calls on arrays in device memory, each compared with the same call on host memory.

usage: python_calls.py launch ARRAYS MEMORY RUN-MPI ARGUMENTS...   start the ranks with run-mpi.sh, or exit with 77
       python_calls.py find                                        print a Python that has mpi4py
       python_calls.py run ARRAYS MEMORY                           one rank, under mpirun with gpudt preloaded

ARRAYS is `cupy`, CuPy's own arrays, or `runtime`, a small class with memory straight from the CUDA runtime, on GPUs
or the simulated device. MEMORY is `device`, `managed` or `pool` (cudaMallocAsync). With two GPUs each rank has its
own. Nothing but mpi4py (and CuPy) is needed. Every check runs a call on host arrays, which the MPI library serves
alone, then on device arrays, and compares all elements, gaps included; a call that changes nothing on any rank fails.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from array import array

SKIPPED = 77
PYTHONS = (os.environ.get("GPUDT_TEST_PYTHON"), "python3", "/usr/bin/python3")


# --- starting the ranks ----------------------------------------------------------------------------------------------

def python_with(module):
    """The path of the first Python that has the module, or None. (By its name alone, mpirun might start another one.)"""
    for python in map(shutil.which, filter(None, PYTHONS)):
        if python is None:
            continue
        # (A folder of that name where this runs would do for Python.)
        done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False, cwd="/")
        if done.returncode == 0:
            return python
    return None


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def launch(arrays, memory, run_mpi):
    if python_with("mpi4py") is None:
        skip("no Python with mpi4py here (apt-get install python3-mpi4py, or pip install mpi4py and set"
             " GPUDT_TEST_PYTHON)")
    python = python_with("mpi4py")
    if arrays == "cupy":
        python = python_with("mpi4py, cupy")
        if python is None:
            skip("no Python with both mpi4py and CuPy here")
        count = subprocess.run([python, "-c", "import cupy; print(cupy.cuda.runtime.getDeviceCount())"],
                               capture_output=True, text=True, check=False)
        if count.returncode != 0 or int(count.stdout) == 0:
            skip("CuPy finds no GPU here")
    command = run_mpi + [python, os.path.abspath(__file__), "run", arrays, memory]
    os.execv(command[0], command)


# --- arrays in device memory -----------------------------------------------------------------------------------------

class RuntimeArray:
    """Memory from the CUDA runtime, with the attribute by which array libraries of Python know each other's."""

    def __init__(self, runtime, memory, host):
        self.runtime, self.memory, self.typecode, self.bytes = runtime, memory, host.typecode, len(host) * host.itemsize
        address = ctypes.c_void_p()
        size = ctypes.c_size_t(max(self.bytes, 1))
        if memory == "managed":
            self.call("cudaMallocManaged", ctypes.byref(address), size, ctypes.c_uint(1))
        elif memory == "pool":
            self.call("cudaMallocAsync", ctypes.byref(address), size, None)
        else:
            self.call("cudaMalloc", ctypes.byref(address), size)
        self.address = address.value
        self.copy(self.address, host.buffer_info()[0])
        self.__cuda_array_interface__ = {
            "shape": (len(host),), "typestr": f"<{'f' if host.typecode in 'df' else 'i'}{host.itemsize}",
            "data": (self.address, False), "version": 2,
        }

    def call(self, name, *arguments):
        error = getattr(self.runtime, name)(*arguments)
        if error != 0:
            raise RuntimeError(f"{name}: error {error}")

    def copy(self, to, source):
        default = 4  # cudaMemcpyDefault
        self.call("cudaMemcpy", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(self.bytes), default)
        self.call("cudaStreamSynchronize", None)

    def read(self):
        host = array(self.typecode, bytes(self.bytes))
        self.copy(host.buffer_info()[0], self.address)
        return host

    def __del__(self):
        if self.memory == "pool":
            self.call("cudaFreeAsync", ctypes.c_void_p(self.address), None)
        else:
            self.call("cudaFree", ctypes.c_void_p(self.address))


def load_runtime():
    """The simulated device where it is preloaded, else the CUDA runtime."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    for name in (None, "libcudart.so", f"{home}/lib64/libcudart.so", "libcudart.so.13", "libcudart.so.12"):
        try:
            runtime = ctypes.CDLL(name)
            runtime.cudaMalloc
            return runtime
        except (OSError, AttributeError):
            pass
    raise RuntimeError("no CUDA runtime here")


class RuntimeArrays:
    def __init__(self, memory, rank):
        self.runtime, self.memory = load_runtime(), memory
        count = ctypes.c_int()
        if self.runtime.cudaGetDeviceCount(ctypes.byref(count)) != 0 or count.value == 0:
            raise RuntimeError("no GPU")
        self.text = f"runtime arrays, {memory} memory, {count.value} devices"
        self.runtime.cudaSetDevice(rank % count.value)

    def upload(self, host):
        return RuntimeArray(self.runtime, self.memory, host)

    def download(self, device):
        return device.read()


class CupyArrays:
    def __init__(self, memory, rank):
        import cupy
        import numpy

        self.cupy, self.numpy = cupy, numpy
        count = cupy.cuda.runtime.getDeviceCount()
        self.text = f"CuPy {cupy.__version__}, {memory} memory, {count} devices"
        cupy.cuda.Device(rank % count).use()
        if memory == "managed":
            cupy.cuda.set_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc)
        elif memory == "pool":
            cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)

    def upload(self, host):
        device = self.cupy.asarray(self.numpy.frombuffer(host, dtype=host.typecode))
        self.cupy.cuda.get_current_stream().synchronize()
        return device

    def download(self, device):
        return array(device.dtype.char, device.get().tobytes())


# --- the checks ------------------------------------------------------------------------------------------------------

class Checks:
    """Runs calls twice and counts."""

    def __init__(self, arrays, comm):
        self.arrays, self.comm = arrays, comm
        self.control = comm.Dup()
        self.passed, self.failures = 0, []

    def __call__(self, name, call, *initial):
        """call(*arrays) on copies of the initial arrays. Results of calls are compared too."""
        host = [array(one.typecode, one) for one in initial]
        wanted = call(*host)
        device = [self.arrays.upload(one) for one in initial]
        found = call(*device)
        after = [self.arrays.download(one) for one in device]
        wrong = ""
        if after != host:
            which = next(i for i, (a, b) in enumerate(zip(after, host)) if a != b)
            places = [i for i, (a, b) in enumerate(zip(after[which], host[which])) if a != b]
            wrong = f"{len(places)} elements of array {which} differ, first at {places[0] if places else '?'}"
        elif found != wanted:
            wrong = difference(found, wanted)
        changed = any(before != now for before, now in zip(initial, host))
        every = self.control.allgather((wrong, changed))
        wrong = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(every) if text]
        if not any(changed for _, changed in every):
            wrong.append("the call changed nothing")
        if wrong:
            self.failures.append(f"{name}: {'; '.join(wrong)}")
        else:
            self.passed += 1


def difference(found, wanted):
    """What a call gave, beside what it gives on host memory; of bytes only those where the two begin to differ."""
    if not isinstance(found, bytes):
        return f"gives {found}, on host memory {wanted}"
    places = [i for i, (a, b) in enumerate(zip(found, wanted)) if a != b]
    first = places[0] if places else min(len(found), len(wanted))
    part = slice(first, first + 16)
    return (f"gives {len(found)} bytes, on host memory {len(wanted)}, of which {len(places)} differ, from byte {first} on:"
            f" {found[part].hex()}, on host memory {wanted[part].hex()}")


def numbers(rank, count, start=0, typecode="d"):
    """Values that differ by rank and place, and stay exact in reductions."""
    return array(typecode, [(start * 131 + rank * 1009 + i * 7) % 4001 + 1 for i in range(count)])


def blank(count, typecode="d"):
    return array(typecode, [-1] * count)


def datatype(MPI, function):
    """The datatype that a function of gpudt_mpi.h gives."""
    made = MPI.Datatype()
    assert getattr(ctypes.CDLL(None), function)(ctypes.c_void_p(MPI._addressof(made))) == MPI.SUCCESS
    return made


class Shape:
    """A datatype of doubles, and how many doubles an array for `count` of it has."""

    def __init__(self, name, datatype, count):
        self.name, self.type, self.count = name, datatype.Commit(), count
        low, extent = datatype.Get_extent()
        true_low, true_extent = datatype.Get_true_extent()
        assert low >= 0 and true_low >= 0
        self.length = ((count - 1) * extent + true_low + true_extent + 7) // 8 + 3
        self.stretch = extent // 8  # doubles from one element to the next
        self.items = datatype.Get_size() // 8  # doubles in an element

    def of(self, buffer):
        return [buffer, self.count, self.type]


def shapes(MPI):
    number = MPI.DOUBLE
    mixed = MPI.Datatype.Create_struct([2, 1, 3], [0, 32, 56], [number] * 3)
    return [
        Shape("contiguous", number.Create_contiguous(5), 40),
        Shape("vector", number.Create_vector(30, 2, 5), 3),
        Shape("indexed", number.Create_indexed([3, 1, 4, 2], [0, 7, 12, 20]), 5),
        Shape("indexed block", number.Create_indexed_block(2, [9, 0, 5, 14]), 6),
        Shape("struct", mixed.Create_resized(0, 96), 20),
        Shape("subarray", number.Create_subarray([6, 7, 8], [3, 4, 5], [1, 2, 2]), 2),
        Shape("vector of vectors", number.Create_vector(4, 2, 3).Create_hvector(3, 1, 200), 2),
        Shape("large vector", number.Create_vector(20000, 1, 2), 1),
    ]


# --- point-to-point --------------------------------------------------------------------------------------------------

def point_to_point(MPI, check, comm):
    rank, peer = comm.rank, comm.rank ^ 1

    def sends():
        yield "Send", comm.Send
        yield "Ssend", comm.Ssend
        yield "Bsend", comm.Bsend
        yield "Isend", lambda *a: comm.Isend(*a).Wait()
        yield "Issend", lambda *a: comm.Issend(*a).Wait()
        yield "Ibsend", lambda *a: comm.Ibsend(*a).Wait()

    def matched(buffer, source, tag):
        status = MPI.Status()
        message = comm.Mprobe(source, tag, status)
        message.Recv(buffer)

    def matched_later(buffer, source, tag):
        comm.Mprobe(source, tag).Irecv(buffer).Wait()

    receives = [comm.Recv, lambda *a: comm.Irecv(*a).Wait(), matched, matched_later]
    MPI.Attach_buffer(bytearray(4 << 20))
    for number, shape in enumerate(shapes(MPI)):
        out, into = numbers(rank, shape.length), blank(shape.length)
        for turn, (name, send) in enumerate(sends()):
            receive = receives[(turn + number) % len(receives)]

            def one_after_the_other(out, into):
                for sender in (0, 1):
                    if rank % 2 == sender:
                        send(shape.of(out), peer, 5)
                    else:
                        receive(shape.of(into), peer, 5)

            check(f"{name}, {shape.name}", one_after_the_other, out, into)

        def status_of(out, into):
            status = MPI.Status()
            request = comm.Irecv(shape.of(into), MPI.ANY_SOURCE, MPI.ANY_TAG)
            comm.Send(shape.of(out), peer, 9)
            request.Wait(status)
            return status.Get_source(), status.Get_tag(), status.Get_count(shape.type), status.Get_elements(MPI.DOUBLE)

        def at_once(out, into):
            requests = [comm.Irecv(shape.of(into), peer, 6), comm.Isend(shape.of(out), peer, 6)]
            while not MPI.Request.Testall(requests):
                pass

        def sendrecv(out, into):
            comm.Sendrecv(shape.of(out), peer, 7, shape.of(into), peer, 7)

        def to_contiguous(out, into):
            doubles = shape.count * shape.items
            comm.Sendrecv(shape.of(out), peer, 8, [into, doubles, MPI.DOUBLE], peer, 8)

        def replace(both):
            comm.Sendrecv_replace(shape.of(both), peer, 7, peer, 7)

        def persistent(out, into):
            requests = [comm.Recv_init(shape.of(into), peer, 4), comm.Send_init(shape.of(out), peer, 4)]
            for _ in range(3):
                MPI.Prequest.Startall(requests)
                MPI.Request.Waitall(requests)
            for request in requests:
                request.Free()

        def pack(out, wire, into):
            position = shape.type.Pack(out, wire, 0, comm)
            shape.type.Unpack(wire, 0, into, comm)
            return position

        def pack_external(out, wire, into):
            shape.type.Pack_external("external32", out, wire, 0)
            shape.type.Unpack_external("external32", wire, 0, into)

        # mpi4py derives their counts from the length of the arrays.
        length = shape.count * shape.stretch
        whole, room, wire = numbers(rank, length), blank(length), blank(shape.count * shape.items)
        check(f"Status, {shape.name}", status_of, out, into)
        check(f"Isend and Irecv, {shape.name}", at_once, out, into)
        check(f"Sendrecv, {shape.name}", sendrecv, out, into)
        check(f"Sendrecv to contiguous, {shape.name}", to_contiguous, out, into)
        check(f"Sendrecv_replace, {shape.name}", replace, out)
        check(f"persistent requests, {shape.name}", persistent, out, into)
        check(f"Pack, {shape.name}", pack, whole, wire, room)
        check(f"Pack_external, {shape.name}", pack_external, whole, wire, room)
    MPI.Detach_buffer()

    for typecode in "dfiq":  # without a word on the type: mpi4py asks the array
        check(f"Sendrecv of plain arrays of {typecode}", lambda out, into: comm.Sendrecv(out, peer, 1, into, peer, 1),
              numbers(rank, 1000, 2, typecode), blank(1000, typecode))


# --- collectives -----------------------------------------------------------------------------------------------------

def collectives(MPI, check, comm):
    rank, size = comm.rank, comm.size
    ring = comm.Create_cart([size], periods=[True])
    summed = MPI.Op.Create(lambda a, b, datatype: add(a, b), commute=True)

    def add(a, b):
        left, right = memoryview(a).cast("d"), memoryview(b).cast("d")
        for i, value in enumerate(left):
            right[i] += value

    def forms(comm, name):
        """The blocking and the nonblocking call."""
        yield name, getattr(comm, name)
        yield "I" + name.lower(), lambda *a, **b: getattr(comm, "I" + name.lower())(*a, **b).Wait()

    for shape in shapes(MPI)[:-1]:
        count, step, room = shape.count, shape.stretch, shape.length + shape.stretch * shape.count * (size - 1)
        one, all_of_them = numbers(rank, shape.length), numbers(rank, room, 3)
        blank_one, blank_all = blank(shape.length), blank(room)
        counts, places = [count - r % 2 for r in range(size)], [count * (size - 1 - r) for r in range(size)]
        mine = [count - rank % 2] * size  # from rank r to rank s: what r has
        w_places = [place * step * 8 for place in places]

        def part(buffer, count=count):
            return [buffer, count, shape.type]

        def parts(buffer, counts=counts):
            return [buffer, counts, places, shape.type]

        def w_parts(buffer, counts):
            return [buffer, counts, w_places, [shape.type] * size]

        at_last = size - 1
        calls = [
            ("Bcast", (one,), lambda call, a: call(part(a), root=at_last)),
            ("Gather", (one, blank_all), lambda call, a, b: call(part(a), part(b), root=at_last)),
            ("Gather", (all_of_them,), lambda call, a: call(
                MPI.IN_PLACE if rank == at_last else part(a), part(a), root=at_last)),
            ("Gatherv", (one, blank_all), lambda call, a, b: call(part(a, counts[rank]), parts(b), root=0)),
            ("Scatter", (all_of_them, blank_one), lambda call, a, b: call(part(a), part(b), root=0)),
            ("Scatterv", (all_of_them, blank_one), lambda call, a, b: call(parts(a), part(b, counts[rank]), root=0)),
            ("Allgather", (one, blank_all), lambda call, a, b: call(part(a), part(b))),
            ("Allgather", (all_of_them,), lambda call, a: call(MPI.IN_PLACE, part(a))),
            ("Allgatherv", (one, blank_all), lambda call, a, b: call(part(a, counts[rank]), parts(b))),
            ("Alltoall", (all_of_them, blank_all), lambda call, a, b: call(part(a), part(b))),
            ("Alltoall", (all_of_them,), lambda call, a: call(MPI.IN_PLACE, part(a))),
            ("Alltoallv", (all_of_them, blank_all), lambda call, a, b: call(parts(a, mine), parts(b))),
            ("Alltoallw", (all_of_them, blank_all), lambda call, a, b: call(w_parts(a, mine), w_parts(b, counts))),
        ]
        for number, (name, buffers, run) in enumerate(calls):
            for form, call in forms(comm, name):
                check(f"{form} ({number}), {shape.name}", lambda *b: run(call, *b), *buffers)

        neighbours = 2 * shape.length + 2 * step * count
        for name, length in (("Neighbor_allgather", shape.length), ("Neighbor_alltoall", neighbours)):
            for form, call in forms(ring, name):
                check(f"{form}, {shape.name}", lambda a, b: call(part(a), part(b)),
                      numbers(rank, length, 4), blank(neighbours))

    # The others, small integers, do not show how they are read.
    for name, one, two in (("float16", 0x3c00, 0x4000), ("bfloat16", 0x3f80, 0x4000)):
        half = datatype(MPI, f"gpudt_type_{name}")

        def total(a, b):
            comm.Allreduce([a, half], [b, half])

        given, sums = array("h", [one] * 60), blank(60, "h")
        total(given, sums)
        assert size != 2 or sums == array("h", [two] * 60), f"1 + 1 in {name} is {sums[0]:#x}"
        check(f"sums of {name}", total, given, blank(60, "h"))

    halves = [("h", datatype(MPI, f"gpudt_type_{name}")) for name in ("float16", "bfloat16")]
    for typecode, kind in (("d", MPI.DOUBLE), ("i", MPI.INT), ("q", MPI.INT64_T), *halves):
        for operator, name in ((MPI.SUM, "SUM"), (MPI.MAX, "MAX"), (summed, "a function of Python's")):
            if operator == summed and typecode != "d":
                continue
            for count in (1, 60, 5000):
                out, into = numbers(rank, count * size, 5, typecode), blank(count * size, typecode)
                calls = [
                    ("Reduce", (out, into), lambda call, a, b: call([a, kind], [b, kind], op=operator, root=at_last)),
                    ("Allreduce", (out, into), lambda call, a, b: call([a, kind], [b, kind], op=operator)),
                    ("Allreduce", (out,), lambda call, a: call(MPI.IN_PLACE, [a, kind], op=operator)),
                    ("Reduce_scatter_block", (out, into),
                     lambda call, a, b: call([a, kind], [b, count, kind], op=operator)),
                    ("Reduce_scatter", (out, into), lambda call, a, b: call(
                        [a, kind], [b, count, kind], [count] * size, op=operator)),
                    ("Scan", (out, into), lambda call, a, b: call([a, kind], [b, kind], op=operator)),
                    ("Exscan", (out, into), lambda call, a, b: call([a, kind], [b, kind], op=operator)),
                ]
                for number, (call_name, buffers, run) in enumerate(calls):
                    for form, call in forms(comm, call_name):
                        check(f"{form} ({number}), {name}, {count} of {typecode}", lambda *b: run(call, *b), *buffers)
                check(f"Reduce_local, {name}, {count} of {typecode}",
                      lambda a, b: operator.Reduce_local([a, kind], [b, kind]),
                      numbers(rank, count * size, 6, typecode), out)
    summed.Free()
    ring.Free()


# --- one-sided -------------------------------------------------------------------------------------------------------

def one_sided(MPI, check, comm):
    rank, peer = comm.rank, comm.rank ^ 1
    group = comm.Get_group().Incl([peer])

    def fence(window, access):
        window.Fence()
        access()
        window.Fence()

    def lock(window, access):
        window.Lock(peer, MPI.LOCK_SHARED)
        access()
        window.Unlock(peer)

    def lock_all(window, access):
        window.Lock_all()
        access()
        window.Flush(peer)
        window.Unlock_all()

    def post_and_start(window, access):
        window.Post(group)
        window.Start(group)
        access()
        window.Complete()
        window.Wait()

    def in_window_of_mpi(memory, sync, access):
        """Host memory, of which some MPI libraries make no windows unless they have allocated it."""
        window = MPI.Win.Allocate(len(memory) * memory.itemsize, 8, comm=comm)
        cells = memoryview(window).cast("B").cast(memory.typecode)
        cells[:] = memory
        comm.Barrier()
        sync(window, lambda: access(window))
        comm.Barrier()
        memory[:] = array(memory.typecode, cells)
        cells.release()
        window.Free()

    def in_window(memory, sync, access):
        try:
            window = MPI.Win.Create(memory, 8, comm=comm)
        except MPI.Exception:
            if not isinstance(memory, array):
                raise
            in_window_of_mpi(memory, sync, access)
            return
        sync(window, lambda: access(window))
        comm.Barrier()
        window.Free()

    syncs = (fence, lock, lock_all, post_and_start)
    for shape in shapes(MPI)[:-1]:
        room = shape.length + 11
        target = (11, shape.count, shape.type)
        exposed, out, result = numbers(rank, room, 7), numbers(rank, shape.length, 8), blank(shape.length)
        calls = {
            "Put": lambda window, a, b: window.Put(shape.of(a), peer, target),
            "Get": lambda window, a, b: window.Get(shape.of(b), peer, target),
            "Accumulate": lambda window, a, b: window.Accumulate(shape.of(a), peer, target, op=MPI.SUM),
            "Get_accumulate": lambda window, a, b: window.Get_accumulate(
                shape.of(a), shape.of(b), peer, target, op=MPI.SUM),
            "Put of contiguous": lambda window, a, b: window.Put(
                [a, min(shape.count * shape.items, shape.length), MPI.DOUBLE], peer,
                (0, min(shape.count * shape.items, shape.length), MPI.DOUBLE)),
        }
        requests = {
            "Rput": lambda window, a, b: window.Rput(shape.of(a), peer, target).Wait(),
            "Rget": lambda window, a, b: window.Rget(shape.of(b), peer, target).Wait(),
            "Raccumulate": lambda window, a, b: window.Raccumulate(shape.of(a), peer, target, op=MPI.MAX).Wait(),
            "Rget_accumulate": lambda window, a, b: window.Rget_accumulate(
                shape.of(a), shape.of(b), peer, target, op=MPI.SUM).Wait(),
        }
        for sync in syncs:
            for name, access in {**calls, **(requests if sync in (lock, lock_all) else {})}.items():
                check(f"{name}, {sync.__name__}, {shape.name}",
                      lambda memory, a, b: in_window(memory, sync, lambda window: access(window, a, b)),
                      exposed, out, result)

    exposed, one, result = numbers(rank, 20, 9, "q"), array("q", [5]), array("q", [-1])
    for sync in syncs:
        check(f"Fetch_and_op, {sync.__name__}", lambda memory, a, b: in_window(
            memory, sync, lambda window: window.Fetch_and_op(a, b, peer, 4, MPI.SUM)), exposed, one, result)
        compare = array("q", [numbers(peer, 20, 9, "q")[6]])
        check(f"Compare_and_swap, {sync.__name__}", lambda memory, a, b, c: in_window(
            memory, sync, lambda window: window.Compare_and_swap(a, c, b, peer, 6)), exposed, one, result, compare)

    def dynamic(memory, out):
        window = MPI.Win.Create_dynamic(comm=comm)
        window.Attach(memory)
        places = comm.allgather(address_of(memory))
        window.Fence()
        window.Put([out, 30, MPI.DOUBLE], peer, (places[peer], 30, MPI.DOUBLE))
        window.Fence()
        window.Detach(memory)
        window.Free()

    check("dynamic window", dynamic, numbers(rank, 40, 1), numbers(rank, 30, 2))
    group.Free()


def address_of(memory):
    interface = getattr(memory, "__cuda_array_interface__", None)
    return interface["data"][0] if interface else memory.buffer_info()[0]


# --- files -----------------------------------------------------------------------------------------------------------

def files(MPI, check, comm):
    rank, size = comm.rank, comm.size
    folder = comm.bcast(tempfile.mkdtemp(prefix="gpudt-python-") if rank == 0 else None)
    path = os.path.join(folder, "data")
    mode = MPI.MODE_CREATE | MPI.MODE_RDWR

    def with_file(access):
        """Everything that the file then holds."""
        comm.Barrier()  # all have read what was there before
        if rank == 0 and os.path.exists(path):
            os.remove(path)
        comm.Barrier()
        file = MPI.File.Open(comm, path, mode)
        access(file)
        file.Sync()
        comm.Barrier()
        file.Close()
        with open(path, "rb") as opened:
            return opened.read()

    def split(file, name):
        def call(*arguments):
            getattr(file, name + "_begin")(*arguments)
            getattr(file, name + "_end")(arguments[-1])
        return call

    for shape in shapes(MPI)[:-1]:
        doubles = shape.count * shape.items
        out, into = numbers(rank, shape.length, 10), blank(shape.length)
        # Two in turn to each rank, which fills the file: what a gap holds is not defined.
        dealt = MPI.DOUBLE.Create_vector(1, 2, 2).Create_resized(0, 16 * size).Commit()
        assert doubles % 2 == 0
        view = (rank * 16, MPI.DOUBLE, dealt)
        begin = rank * doubles
        pairs = {
            "Write_at": lambda f, a, b: (f.Write_at(begin, a), f.Sync(), f.Read_at(begin, b)),
            "Write_at_all": lambda f, a, b: (f.Write_at_all(begin, a), f.Read_at_all(begin, b)),
            "Iwrite_at": lambda f, a, b: (f.Iwrite_at(begin, a).Wait(), f.Iread_at(begin, b).Wait()),
            "Write": lambda f, a, b: (f.Seek(begin), f.Write(a), f.Seek(begin), f.Read(b)),
            "Write_all": lambda f, a, b: (f.Seek(begin), f.Write_all(a), f.Seek(begin), f.Read_all(b)),
            "Iwrite": lambda f, a, b: (f.Seek(begin), f.Iwrite(a).Wait(), f.Seek(begin), f.Iread(b).Wait()),
            "Iwrite_all": lambda f, a, b: (f.Seek(begin), f.Iwrite_all(a).Wait(), f.Seek(begin), f.Iread_all(b).Wait()),
            "Write_at_all_begin": lambda f, a, b: (
                split(f, "Write_at_all")(begin, a), split(f, "Read_at_all")(begin, b)),
            "Write_ordered": lambda f, a, b: (f.Write_ordered(a), f.Seek_shared(0), f.Read_ordered(b)),
        }
        for name, access in pairs.items():
            def plain(a, b):
                def run(file):
                    file.Set_view(0, MPI.DOUBLE, MPI.DOUBLE)
                    access(file, shape.of(a), shape.of(b))
                return with_file(run)

            check(f"{name}, {shape.name}", plain, out, into)

        def viewed(a, b):
            def run(file):
                file.Set_view(*view)
                file.Write_all(shape.of(a))
                file.Seek(0)
                file.Read_all(shape.of(b))
            return with_file(run)

        def view_to_contiguous(a, b):
            def run(file):
                file.Set_view(*view)
                file.Iwrite_at_all(0, shape.of(a)).Wait()
                file.Read_at_all(0, [b, doubles, MPI.DOUBLE])
            return with_file(run)

        check(f"a view, {shape.name}", viewed, out, into)
        check(f"a view to contiguous, {shape.name}", view_to_contiguous, out, blank(max(doubles, shape.length)))
        dealt.Free()
    comm.Barrier()
    if rank == 0:
        os.remove(path)
        os.rmdir(folder)


def memory_kinds(MPI, check, comm):
    """What a program asks before it passes device memory (MPI-4.1, section 12.4.3)."""
    for name, info in (("MPI_INFO_ENV", MPI.INFO_ENV), ("MPI_COMM_WORLD", comm.Get_info())):
        kinds = (info.Get("mpi_memory_alloc_kinds") or "").split(",")
        for kind in ("mpi", "system", "cuda", "cuda:device", "cuda:managed", "cuda:host"):
            if kind in kinds:
                check.passed += 1
            else:
                check.failures.append(f"{name} lacks the memory kind {kind}")


def run(arrays, memory):
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.size % 2 != 0:
        skip(f"{comm.size} ranks: mpi4py may be made for another MPI than the one that started it")
    made = (CupyArrays if arrays == "cupy" else RuntimeArrays)(memory, comm.rank)
    check = Checks(made, comm)
    for part in (memory_kinds, point_to_point, collectives, one_sided, files):
        before = check.passed
        part(MPI, check, comm)
        if comm.rank == 0:
            print(f"{part.__name__}: {check.passed - before} checks passed", flush=True)
    if comm.rank == 0:
        for failure in check.failures:
            print(f"FAILED: {failure}")
        print(f"{made.text}; {MPI.Get_library_version().split(',')[0]}")
        print(f"{check.passed} checks passed, {len(check.failures)} failed", flush=True)
    check.control.Free()
    sys.exit(1 if check.failures else 0)


def main():
    if sys.argv[1:2] == ["launch"]:
        launch(sys.argv[2], sys.argv[3], sys.argv[4:])
    elif sys.argv[1:] == ["find"]:
        python = python_with("mpi4py")
        print(python or "none")
        sys.exit(0 if python else 1)
    elif sys.argv[1:2] == ["run"]:
        run(sys.argv[2], sys.argv[3])
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
