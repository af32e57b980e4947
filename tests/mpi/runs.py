#!/usr/bin/env python3
"""Checks that .ci/run has a run for each test case that is built: one of the table, or of those that are given.

usage: runs.py RUNS.TXT FAMILY [HAS-WORD...] -- NAME PROGRAM [NAME PROGRAM...] [-- PROGRAM CASES RANKS [FORMS]]...

FAMILY is that of the MPI library, openmpi or mpich; the HAS-WORDs say what it has. Each NAME stands for a PROGRAM in the
table. What follows are runs as calls.py takes them.
"""

import os
import pathlib
import subprocess
import sys


def split(words):
    """The parts between words "--"."""
    parts = [[]]
    for word in words:
        if word == "--":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def cases(program, selections):
    """The names of the test cases that any of the selections has the program run; an empty one: all but hidden ones."""
    wanted = ",".join(selection or "~[.]" for selection in selections)
    for option in (["--list-test-names-only"], ["--list-tests", "--verbosity", "quiet"]):  # Catch2 2 and 3
        done = subprocess.run([program, *option, wanted], capture_output=True, text=True, check=False,
                              env={**os.environ, "GPUDT_TEST_HOST": "1"})  # no GPU is needed for a list
        names = {line.strip() for line in done.stdout.splitlines() if line.strip() and " passed, " not in line}
        if names:
            return names
    sys.exit(f"runs.py: {program} selects nothing by {wanted!r}: {done.stdout}{done.stderr}")


def rows(path, family, has):
    """(program, selection) of the table's runs in .ci/run, but for those that pass the library by or play another MPI
    library. What runs over Open MPI need not run over MPICH."""
    here = {"open"} if family == "openmpi" else {"open", "mpich", "mpich5"}
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        name, over, program, selection, settings, adds = (field.strip() for field in line.split("|"))
        if not adds:
            sys.exit(f"runs.py: {name} does not say what it adds")
        words = over.split()
        if "alone" in settings.split() or "cuda-aware" in words:
            continue
        if here & set(words) and all(word in has for word in words if word.startswith("has-")):
            yield program, selection


def main():
    (path, family, *has), named, *runs = split(sys.argv[1:])
    programs = dict(zip(named[::2], named[1::2]))
    selections = {program: [] for program in programs.values()}
    for name, selection in rows(path, family, has):
        if name in programs:
            selections[programs[name]].append(selection)
    for program, selection, *_ in runs:
        selections[program].append(selection)
    in_runs = set()  # test cases of equal name are the same one in several programs
    for program, wanted in selections.items():
        in_runs |= cases(program, wanted)
    failed = 0
    for name, program in programs.items():
        everything = cases(program, ["*"])
        missing = sorted(everything - in_runs)
        print(f"{name}: {len(everything)} test cases, {len(missing)} in no run")
        for case in missing:
            print(f"  {case}")
        failed += len(missing)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
