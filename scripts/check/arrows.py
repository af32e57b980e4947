#!/usr/bin/env python3
"""Check which part of the source uses which: only along the arrows of the table below, which docs/ARCHITECTURE.md shows,
too. Says each include that goes another way and, of a build folder, each symbol: a function may be declared in a room
below the one that it lives in. Exits with 1 if there is one.

  arrows.py              includes
  arrows.py BUILD...     and the symbols of these build folders' object files, as far as they have been built
  arrows.py --table
"""
import argparse
import collections
import pathlib
import re
import subprocess
import sys

from commands import ROOT, commands

# What each room may include, beside itself.
ALLOWED = {
    "base": [],
    "include": [],
    "datatype": ["base"],
    # Around the memory, streams and launches that cuda/ and sim/ offer as one interface, runtime/.
    "device/runtime": ["base"],
    "device/kernels": ["datatype", "base"],
    "device/choice": ["device/runtime", "datatype", "base"],
    "device/memory": ["device/runtime", "datatype", "base"],
    "device/cuda": ["device/kernels", "device/runtime", "base"],
    "device/sim": ["device/kernels", "device/runtime", "base"],
    "device/transfer": ["device/memory", "device/choice", "device/kernels", "device/runtime", "datatype", "base"],
    "device": ["device/transfer", "device/sim", "device/cuda", "device/memory", "device/choice", "device/kernels",
               "device/runtime", "datatype", "base"],
    "interpose/support": ["device", "datatype", "include", "base"],
    "interpose/mpi": ["interpose/support", "base"],
    "interpose/engine": ["interpose/mpi", "interpose/support", "device", "base"],
    "interpose/shared": ["interpose/support", "device", "datatype", "base"],
    "interpose/job": ["interpose/shared", "interpose/mpi", "interpose/support", "base"],
    "interpose/transport": ["interpose/shared", "interpose/job", "interpose/engine", "interpose/mpi",
                            "interpose/support", "device", "datatype", "base"],
    "interpose/requests": ["interpose/transport", "interpose/engine", "interpose/mpi", "interpose/support", "device",
                           "datatype", "base"],
    "interpose/collectives": ["interpose/requests", "interpose/transport", "interpose/shared", "interpose/job",
                              "interpose/engine", "interpose/mpi", "interpose/support", "device", "datatype", "base"],
    "interpose/rma": ["interpose/requests", "interpose/transport", "interpose/shared", "interpose/job",
                      "interpose/engine", "interpose/mpi", "interpose/support", "device", "datatype", "base"],
    "interpose/streams": ["interpose/engine", "interpose/mpi", "interpose/support", "device", "base"],
    "interpose/calls": ["interpose/streams", "interpose/requests", "interpose/collectives", "interpose/rma",
                        "interpose/transport", "interpose/job", "interpose/engine", "interpose/mpi",
                        "interpose/support", "device", "datatype", "include", "base"],
    "interpose/fortran": ["interpose/streams", "interpose/collectives", "interpose/rma", "interpose/requests",
                          "interpose/support", "device", "base"],
    # gpudt-tune has an engine for each way to move data, and so a runtime for each.
    "pingpong": ["include", "device/transfer", "device/choice", "device/cuda", "device/sim", "device", "datatype"],
    "initiated": ["device/cuda", "device/kernels", "datatype", "include", "base"],
    "initiated/programs": ["initiated", "pingpong"],
}

SOURCES = {".cpp", ".hpp", ".cu", ".cuh", ".h", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def room_of(path):
    """The longest name of a room that the path, relative to the root, begins with; None outside of all."""
    names = [room for room in ALLOWED if path == room or path.startswith(room + "/")]
    return max(names, key=len, default=None)


def arrows():
    """(room, room it includes, file, included file) of every include from one room to another."""
    for top in sorted({room.split("/")[0] for room in ALLOWED}):
        for file in sorted((ROOT / top).rglob("*")):
            if file.suffix not in SOURCES:
                continue
            name = file.relative_to(ROOT).as_posix()
            for included in INCLUDE.findall(file.read_text(encoding="utf-8")):
                # Generated headers lie beside their room's own, and have no folder in their name.
                target = included if "/" in included else None
                room, other = room_of(name), target and room_of(target)
                if room and other and room != other:
                    yield room, other, name, included


def objects(build):
    """Path, room and source of each object file of a room that has been built; for several sources, the room."""
    found = collections.defaultdict(list)
    for command in commands(build):
        path, source = build / command["output"], pathlib.Path(command["file"])
        if source.is_relative_to(ROOT) and path.suffix == ".o" and path.exists():
            found[str(path)].append(source.relative_to(ROOT).as_posix())
    for path, names in found.items():
        room, *others = {room_of(name) for name in names}
        if room and not others:  # else it is of a program that has files of several rooms
            yield path, room, names[0] if len(names) == 1 else room


def symbol_arrows(build):
    """(room, room whose function or variable it uses, file, symbol) of every use from one room in another; and the
    number of object files."""
    found = {path: (room, source) for path, room, source in objects(build)}
    # A program of a test or benchmark may have functions of the same name as another.
    found = {path: at for path, at in found.items() if at[0].split("/")[0] in ("interpose", "device", "datatype")}
    if not found:
        sys.exit(f"arrows: no object files of this checkout in {build}")
    listing = subprocess.run(["nm", "-A", "-P", *found], capture_output=True, text=True, check=True).stdout
    defined, used = {}, []
    for line in listing.splitlines():
        path, _, rest = line.partition(": ")
        symbol, kind = rest.split()[:2]
        # The simulated runtime has CUDA's own names, which others mean CUDA's functions by.
        if kind in "TDBR" and (found[path][0] != "device/sim" or symbol.startswith("_Z")):
            defined[symbol] = found[path][0]
        elif kind == "U":
            used.append((path, symbol))
    arrows_found = [(found[path][0], defined[symbol], found[path][1], symbol) for path, symbol in used
                    if defined.get(symbol, found[path][0]) != found[path][0]]
    return arrows_found, len(found)


def demangled(symbol):
    return subprocess.run(["c++filt", symbol], capture_output=True, text=True, check=True).stdout.strip()


def check_symbols(build):
    """Says what goes against the table. Returns how much does."""
    found, count = symbol_arrows(build)
    # A room that may include device/ may use what device/'s headers declare, wherever in device/ that is defined.
    wrong = [arrow for arrow in found if not {arrow[1], arrow[1].split("/")[0]} & {*ALLOWED[arrow[0]]}]
    for room, other, name, symbol in wrong:
        print(f"{name}: uses {demangled(symbol)} of {other}, which {room} may not")
    print(f"arrows: {len(found)} symbols between rooms in {count} object files, {len(wrong)} against the table")
    return len(wrong)


def print_table(counts):
    print("| room | may include |\n|---|---|")
    for room, others in ALLOWED.items():
        told = ", ".join(f"`{other}` ({counts[room, other]})" for other in others)
        print(f"| `{room}` | {told or 'nothing of gpudt'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true",
                        help="print the table as Markdown, with the number of includes along each arrow")
    parser.add_argument("builds", nargs="*", type=pathlib.Path, metavar="BUILD",
                        help="a build folder, whose symbols are checked, too")
    arguments = parser.parse_args()
    found = list(arrows())
    if arguments.table:
        print_table(collections.Counter((room, other) for room, other, _, _ in found))
    wrong = [arrow for arrow in found if arrow[1] not in ALLOWED[arrow[0]]]
    for room, other, name, included in wrong:
        print(f"{name}: includes {included}, but {room} may not include {other}")
    if not arguments.table:
        print(f"arrows: {len(found)} includes between rooms, {len(wrong)} against the table")
    wrong_symbols = sum(check_symbols(build.resolve()) for build in arguments.builds)
    return 1 if wrong or wrong_symbols else 0


if __name__ == "__main__":
    sys.exit(main())
