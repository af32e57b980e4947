#!/usr/bin/env python3
"""Runs tests with the recorder preloaded, and fails unless they call every function that has a buffer with device
memory and a derived datatype. The tests verify the data: a run that fails, fails this test. What the MPI library does
wrongly by itself is listed, and is no failure.

usage: calls.py FAMILY TABLE RECORDER LIBRARY SIM RUN-MPI [OPTIONS] -- PREPROCESSOR... -- PROGRAM TESTS RANKS [FORMS]
       [-- PROGRAM...]

FAMILY is that of the MPI library, openmpi or mpich; OPTIONS are for run-mpi.sh; each PROGRAM is run with the argument
TESTS on RANKS ranks, and with the library FORMS, which replaces calls by others, preloaded before the recorder. Prints
one line a function, and the numbers by chapter of interpose/functions.txt.
"""

import os
import re
import subprocess
import sys
import tempfile

from functions import read_prototypes, read_table

SECONDS = 300  # most for each run

# What the standard allows only predefined datatypes for, and what has none.
NO_DERIVED_TYPE = {
    "MPI_Fetch_and_op": "predefined datatypes only",
    "MPI_Compare_and_swap": "predefined datatypes only",
    "MPI_Buffer_attach": "no datatype",
    "MPI_Win_create": "no datatype",
    "MPI_Win_attach": "no datatype",
}

# What MPICH 4.0 does wrongly on host memory, so that it cannot be the reference.
WRONG = {
    "mpich": {
        "MPI_Reduce_scatter_block",
        "MPI_Ireduce_scatter_block",
        *(
            f"MPI_{name}_init"
            for name in (
                "Gather",
                "Gatherv",
                "Scatter",
                "Scatterv",
                "Allgather",
                "Allgatherv",
                "Neighbor_allgather",
                "Neighbor_allgatherv",
                "Reduce_scatter_block",
            )
        ),
    },
}


def no_derived_type(name):
    return name.removesuffix("_c") in NO_DERIVED_TYPE or name.endswith("_end")


def chapters(path):
    """Function -> chapter of the table."""
    chapter, found = "", {}
    with open(path, encoding="ascii") as table:
        for line in table:
            if heading := re.match(r"# --- (.*)", line):
                chapter = heading.group(1)
            elif words := line.split("#")[0].split():
                found[words[0]] = chapter
    return found


def record(command, folder):
    """Function -> [calls, with device memory, with a derived datatype too, test case], of all ranks."""
    counts = {}
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout[-4000:], done.stderr[-4000:], f"FAILED: {' '.join(command)}", sep="\n")
        sys.exit(1)
    for process in os.listdir(folder):
        with open(os.path.join(folder, process), encoding="utf-8") as lines:
            for line in lines:
                name, *numbers, test_case = line.rstrip("\n").split("\t")
                count = counts.setdefault(name, [0, 0, 0, ""])
                for i, number in enumerate(numbers):
                    count[i] += int(number)
                count[3] = count[3] or test_case
    return counts


def split(arguments):
    groups = [[]]
    for argument in arguments:
        if argument == "--":
            groups.append([])
        else:
            groups[-1].append(argument)
    return groups


def main():
    (family, table, recorder, library, sim, *run_mpi), preprocessor, *runs = split(sys.argv[1:])
    total = {}
    for program, tests, ranks, *forms in runs:
        with tempfile.TemporaryDirectory(prefix="gpudt-calls-") as folder:
            command = [*run_mpi, "-t", str(SECONDS), "-n", ranks, "-l", ":".join([*forms, recorder, library]), "-s", sim,
                       "-e", f"GPUDT_CALLS_FOLDER={folder}", program, *filter(None, [tests])]
            for name, counts in record(command, folder).items():
                known = total.setdefault(name, [0, 0, 0, ""])
                for i in range(3):
                    known[i] += counts[i]
                known[3] = known[3] or counts[3]
    prototypes, chapter_of = read_prototypes(preprocessor), chapters(table)
    missing, by_chapter = [], {}
    for function in read_table(table):
        if not function.has_buffer():
            continue
        for name in function.declared_names(prototypes):
            calls, device, both, test_case = total.get(name, [0, 0, 0, ""])
            enough = device if no_derived_type(name) else both
            print(f"{name:36} {calls:8} calls, {device:8} with device memory, {both:8} and a derived datatype"
                  f"{'; first in: ' + test_case if test_case else ''}")
            row = by_chapter.setdefault(chapter_of[function.name], [0, 0, 0])
            row[0] += 1
            row[1] += enough > 0
            row[2] += enough
            if enough == 0:
                missing.append(name)
    print()
    for chapter, (functions, covered, calls) in by_chapter.items():
        print(f"{chapter}: {covered} of {functions} functions, in {calls} calls")
    print(f"functions with a buffer: {sum(row[1] for row in by_chapter.values())} of"
          f" {sum(row[0] for row in by_chapter.values())} called with device memory and, where there is one, a derived"
          " datatype, all data verified")
    wrong = [name for name in missing if name.removesuffix("_c") in WRONG.get(family, set())]
    for name in missing:
        print(f"NOT TESTED: {name}{' (the MPI library does it wrongly)' if name in wrong else ''}")
    sys.exit(1 if len(wrong) < len(missing) else 0)


if __name__ == "__main__":
    main()
