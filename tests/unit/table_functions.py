#!/usr/bin/env python3
"""Tests that no MPI function with a buffer is forgotten: compares the table of functions with the installed mpi.h, and
both with the symbols of the library, for C and for Fortran.

usage: table_functions.py LIBGPUDT-PMPI.SO TABLE openmpi|mpich|none[+bare] PREPROCESSOR...

The family of MPI libraries for which the library has wrappers for Fortran, and whether these have the names without an
underscore, too. PREPROCESSOR is the command that compiles against mpi.h. The module
`functions` (scripts/) is found by PYTHONPATH.
"""

import glob
import os
import pathlib
import re
import subprocess
import sys
import unittest

from functions import NOT_BUFFERS, OUTSIDE_THE_TABLE, TOOL_PREFIX, read_prototypes, read_table

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# Interposed, but no functions of the standard, which no program calls from Fortran; and those for C alone.
IN_STREAMS = re.findall(r"^int (MPIX_\w+)\(", (ROOT / "include/gpudt_streams.h").read_text(encoding="ascii"), re.MULTILINE)
C_ALONE = {"MPIX_Query_cuda_support", "MPIX_Query_ze_support", "MPIX_Query_hip_support", "MPIX_Query_rocm_support",
           "MPIX_GPU_query_support", *IN_STREAMS, *OUTSIDE_THE_TABLE}


def exported(library):
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in symbols.splitlines()}


def with_buffers(prototypes):
    """The functions of the header that take a buffer."""
    return {
        name
        for name, types in prototypes.items()
        if any(c_type in ("void *", "const void *") for c_type in types)
        and name not in NOT_BUFFERS
        and not name.startswith(TOOL_PREFIX)
    }


def declared(table, prototypes):
    """Name in the header -> row of the table."""
    return {name: function for function in table for name in function.declared_names(prototypes)}


def without_row(table, prototypes):
    return sorted(with_buffers(prototypes) - set(declared(table, prototypes)))


def fortran_names(name, bare):
    """What the object files of Fortran programs call a procedure: two manglings, four with `bare`, and that of mpi_f08."""
    lower = name.lower()
    return [lower + "_", lower + "__", lower + "_f08_"] + ([lower, name.upper()] if bare else [])


def in_fortran(names):
    return sorted(name for name in names if not name.endswith("_c"))  # mpi_f08 has no names of its own for these


class Table(unittest.TestCase):
    library = path = ""
    preprocessor = []
    fortran, bare = "none", ""

    @classmethod
    def setUpClass(cls):
        cls.table = read_table(cls.path)
        cls.prototypes = read_prototypes(cls.preprocessor)
        cls.declared = declared(cls.table, cls.prototypes)
        cls.symbols = exported(cls.library)

    def test_header_is_understood(self):
        self.assertGreaterEqual(len(with_buffers(self.prototypes)), 107)  # those of MPI-3.1
        self.assertEqual(self.prototypes["MPI_Wait"], ["MPI_Request *", "MPI_Status *"])
        self.assertEqual(
            self.prototypes["MPI_Gatherv"],
            ["const void *", "int", "MPI_Datatype", "void *", "const int *", "const int *", "MPI_Datatype", "int",
             "MPI_Comm"],
        )

    def test_every_function_with_a_buffer_has_a_row(self):
        self.assertEqual(without_row(self.table, self.prototypes), [])

    def test_a_missing_row_is_noticed(self):
        for gone in ("MPI_Send", "MPI_Ialltoallw", "MPI_File_read_all_end"):
            rest = [function for function in self.table if function.name != gone]
            self.assertIn(gone, without_row(rest, self.prototypes))

    def test_rows_agree_with_the_header(self):
        for name, function in self.declared.items():
            with self.subTest(name):
                self.assertEqual(function.c_types(large=name.endswith("_c")), self.prototypes[name])

    def test_exceptions_are_in_no_row(self):
        self.assertEqual([function.name for function in self.table if function.name in NOT_BUFFERS], [])

    def test_every_row_is_interposed_in_c(self):
        missing = (set(self.declared) | {"P" + name for name in self.declared}) - self.symbols
        self.assertEqual(sorted(missing), [], "not exported by the library")

    def test_every_interposed_function_has_a_row(self):
        interposed = {name for name in self.symbols if re.match(r"MPIX?_[A-Z][a-z]", name)}
        self.assertEqual(sorted(interposed - set(self.declared) - C_ALONE), [], "not in the table")

    def test_those_that_enqueue_are_declared_and_procedures(self):
        rows = read_table(ROOT / "interpose/enqueue_functions.txt")
        names = [name for row in rows for name in [row.name, row.name + "_c"][: 1 + row.has_large_form()]]
        self.assertEqual(sorted(names), sorted(IN_STREAMS))
        wanted = set(names) | ({name.lower() + "_" for name in names} if self.fortran != "none" else set())
        self.assertEqual(sorted(wanted - self.symbols), [], "not exported by the library")

    def test_every_row_is_interposed_in_fortran(self):
        if self.fortran != "openmpi":
            self.skipTest("the MPI library's Fortran procedures call the C functions")
        missing = {}
        for name in in_fortran(self.declared):
            lacks = [symbol for symbol in fortran_names(name, self.bare) if symbol not in self.symbols]
            if lacks:
                missing[name] = lacks
        self.assertEqual(missing, {}, "not exported by the library")

    def test_c_functions_of_like_names_are_left_alone(self):
        """The upper-case names of C's functions are MPI_Send; Fortran's end with an underscore."""
        bare = [symbol for symbol in self.symbols if re.fullmatch(r"(mpix?_[a-z_]*[a-z]|MPIX?_[A-Z_]+)", symbol)]
        self.assertEqual(sorted(bare) if not self.bare else [], [])

    def test_names_are_those_of_the_mpi_library(self):
        """Whatever the MPI library's own Fortran procedures are called, ours are called too, and nothing else."""
        needed = subprocess.run(["ldd", self.library], capture_output=True, text=True, check=True).stdout
        mpi = re.search(r"libmpi\.so\S* => (\S+)", needed)
        libraries = glob.glob(os.path.dirname(mpi.group(1)) + "/libmpi_*.so.*") if mpi else []
        libraries = [library for library in libraries if re.search(r"libmpi_(mpifh|usempif08)\.so\.\d+$", library)]
        if self.fortran != "openmpi" or len(libraries) < 2:
            self.skipTest("no Fortran libraries of MPI here")
        theirs = set().union(*map(exported, libraries))
        procedures = {name.lower() for name in in_fortran(self.declared)}
        form = re.compile(r"(mpix?_[a-z_]+?|MPIX?_[A-Z_]+?)(?:_f08_|__|_" + ("|)" if self.bare else ")"))

        def of_the_table(symbols):
            matches = ((symbol, form.fullmatch(symbol)) for symbol in symbols)
            return {symbol for symbol, match in matches if match and match.group(1).lower() in procedures}

        self.assertEqual(sorted(of_the_table(theirs) - self.symbols), [], "not exported by the library")
        ours = {symbol for symbol in of_the_table(self.symbols)}
        self.assertEqual(sorted(ours - theirs), [], "of no use: the MPI library has no procedure of this name")

    def test_procedures_that_pass_the_c_functions_by(self):
        """Of MPICH's Fortran procedures those are replaced that call the PMPI_ functions, under names that it has."""
        if self.fortran != "mpich":
            self.skipTest("not MPICH, or no wrappers for Fortran")
        needed = subprocess.run(["ldd", self.library], capture_output=True, text=True, check=True).stdout
        mpi = re.search(r"libmpich\.so\S* => (\S+)", needed)
        libraries = glob.glob(os.path.dirname(mpi.group(1)) + "/libmpichfort.so.*") if mpi else []
        if not libraries:
            self.skipTest("no Fortran library of MPICH here")
        theirs = exported(libraries[0])
        ours = {symbol for symbol in self.symbols if symbol.startswith("mpi_")}
        self.assertEqual(sorted(ours - theirs), [], "of no use: the MPI library has no procedure of this name")
        wanted = {f"{name.lower()}_f08_" for name in self.declared} & theirs
        self.assertEqual(sorted(wanted - ours), [], "not exported by the library")

    @classmethod
    def tearDownClass(cls):
        buffers = with_buffers(cls.prototypes)
        in_c = buffers & cls.symbols
        print(f"functions with buffers in mpi.h: {len(buffers)}, covered in C: {len(in_c)}", end="")
        if cls.fortran == "openmpi":
            names = in_fortran(buffers)
            covered = [name for name in names if cls.symbols.issuperset(fortran_names(name, cls.bare))]
            print(f", in Fortran: {len(covered)} of {len(names)}", end="")
        print()


def main():
    Table.library, Table.path = sys.argv[1:3]
    Table.fortran, _, Table.bare = sys.argv[3].partition("+")
    Table.preprocessor = sys.argv[4:]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Table))
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(0 if failed == 0 and result.testsRun > 0 else 1)


if __name__ == "__main__":
    main()
