#!/usr/bin/env python3
"""Check which part of the source includes which: only along the arrows of the table below, which docs/ARCHITECTURE.md
shows, too. Says each include that goes another way, and exits with 1 if there is one.

  arrows.py --table
"""
import argparse
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

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
    "interpose/transport": ["interpose/mpi", "interpose/support", "device", "datatype", "base"],
    "interpose/requests": ["interpose/transport", "interpose/mpi", "interpose/support", "device", "datatype", "base"],
    "interpose/collectives": ["interpose/requests", "interpose/transport", "interpose/mpi", "interpose/support",
                              "device", "datatype", "base"],
    "interpose/rma": ["interpose/requests", "interpose/transport", "interpose/mpi", "interpose/support", "device",
                      "datatype", "base"],
    "interpose/calls": ["interpose/requests", "interpose/collectives", "interpose/rma", "interpose/transport",
                        "interpose/mpi", "interpose/support", "device", "datatype", "include", "base"],
    "interpose/fortran": ["interpose/collectives", "interpose/rma", "interpose/requests", "interpose/support", "base"],
    # gpudt-tune has an engine for each way to move data, and so a runtime for each.
    "pingpong": ["device/transfer", "device/choice", "device/cuda", "device/sim", "device", "datatype"],
    "initiated": ["device/cuda", "device/kernels", "datatype"],
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


def print_table(counts):
    print("| room | may include |\n|---|---|")
    for room, others in ALLOWED.items():
        told = ", ".join(f"`{other}` ({counts[room, other]})" for other in others)
        print(f"| `{room}` | {told or 'nothing of gpudt'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true",
                        help="print the table as Markdown, with the number of includes along each arrow")
    arguments = parser.parse_args()
    found = list(arrows())
    if arguments.table:
        print_table(collections.Counter((room, other) for room, other, _, _ in found))
    wrong = [arrow for arrow in found if arrow[1] not in ALLOWED[arrow[0]]]
    for room, other, name, included in wrong:
        print(f"{name}: includes {included}, but {room} may not include {other}")
    if not arguments.table:
        print(f"arrows: {len(found)} includes between rooms, {len(wrong)} against the table")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
