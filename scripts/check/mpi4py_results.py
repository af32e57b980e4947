#!/usr/bin/env python3
"""Compares runs of mpi4py's tests: says what failed in the first run, and where the others differ from it.

usage: mpi4py_results.py FOLDER...

Each FOLDER is what `mpirun --output-filename` has made of `test/main.py -v`: a file stderr for each rank. The exit
status is 0 if all runs have ended, and all others failed in the same tests as the first; of a single run, if no test
failed.
"""

import glob
import re
import sys

HEADING = re.compile(r"^(?:FAIL|ERROR): (\S+ \(\S+\))")
RULE = "=" * 70


class Rank:
    """What one rank's tests came to."""

    def __init__(self, path):
        with open(path, encoding="utf-8", errors="replace") as output:
            text = output.read()
        ran = re.search(r"^Ran (\d+) tests?", text, re.MULTILINE)
        self.ran = int(ran.group(1)) if ran else None
        self.last = (text.splitlines() or [""])[-1]
        self.failed = {}  # name -> the whole entry
        for entry in text.split(RULE + "\n")[1:]:
            if heading := HEADING.match(entry):
                self.failed[heading.group(1)] = entry


def ranks_of(folder):
    return [Rank(path) for path in sorted(glob.glob(f"{folder}/**/stderr", recursive=True))]


def failures(ranks):
    """(rank, test) of all."""
    return {(number, name) for number, rank in enumerate(ranks) for name in rank.failed}


def tell(folder, ranks, failed):
    for number, rank in enumerate(ranks):
        count = sum(1 for of, _ in failed if of == number)
        ended = f"{rank.ran} tests, {count} failed" if rank.ran is not None else f"DID NOT END: {rank.last[:120]}"
        print(f"{folder}: rank {number}: {ended}")


def main():
    folders = sys.argv[1:]
    runs = [ranks_of(folder) for folder in folders]
    failed = [failures(ranks) for ranks in runs]
    expected = failed[0] if len(runs) > 1 else set()
    good = True
    for folder, ranks, those in zip(folders, runs, failed):
        tell(folder, ranks, those)
        good = good and len(ranks) > 0 and all(rank.ran == runs[0][0].ran for rank in ranks) and ranks[0].ran is not None
        good = good and those == expected
        for number, name in sorted(those - expected):
            print(f"FAILED on rank {number}: {name}", ranks[number].failed[name], sep="\n")
        for number, name in sorted(expected - those):
            print(f"rank {number}: failed in {folders[0]} alone: {name}")
    for number, name in sorted(expected):
        print(f"rank {number}: fails without the library, too: {name}")
    print("the same results" if good and len(runs) > 1 else "passed" if good else "DIFFERENT" if len(runs) > 1 else "FAILED")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
