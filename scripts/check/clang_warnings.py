#!/usr/bin/env python3
"""Have Clang look for two kinds of faults in the sources of base/, datatype/, device/ and interpose/ that a build
compiles. Says what is wrong, and exits with 1 then.

Locks: what a mutex guards is touched only while it is held, and what must be held is held by the caller
(base/mutex.hpp). Static objects: none has a destructor that runs when the program exits (base/never_destroyed.hpp).

  clang_warnings.py build
"""
import argparse
import collections
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from commands import ROOT, compiled_as_one

FOLDERS = ("base", "datatype", "device", "interpose")
WARNINGS = ["-Wthread-safety", "-Wexit-time-destructors"]
FLAGS = [*WARNINGS, "-Werror", "-Wno-unknown-warning-option"]
OFTEN = 3  # a header of the project is precompiled if one source out of so many includes it
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
LIBRARY = re.compile(r"^\s*#\s*include\s*(<[a-z_]+>)", re.MULTILINE)  # the C++ library's, whose names have no dot


@functools.lru_cache(maxsize=None)
def includes(name):
    """All files of the project that the file includes, itself among them."""
    file = ROOT / name
    if not file.is_file():  # generated
        return frozenset()
    return frozenset({name}).union(*(includes(other) for other in INCLUDE.findall(file.read_text(encoding="utf-8"))))


def flags_of(words):
    """Those of a compiler's command that say what the source means; of two words those as one."""
    found = []
    for word, following in zip(words, words[1:]):
        if word in ("-isystem", "-I", "-D"):
            found.append(word + following)
        elif re.match(r"-(isystem|I|D|std=|pthread).*", word):
            found.append(word)
    return found


def sources(build):
    """The sources to be analysed; what clang is to compile, which may be a file that includes several of them; and the
    flags of all their targets together, which do not contradict each other."""
    names, units, flags = [], [], []
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        file = build / entry["file"]
        pieces = compiled_as_one(file) or [file.resolve()]
        ours = [piece for piece in pieces if piece.is_relative_to(ROOT) and piece.suffix == ".cpp"
                and piece.relative_to(ROOT).parts[0] in FOLDERS]
        if ours:
            names += [piece.relative_to(ROOT).as_posix() for piece in ours]
            units += [file] if ours == pieces else ours
            flags += flags_of(shlex.split(entry["command"]))
    return sorted(set(names)), list(dict.fromkeys(units)), list(dict.fromkeys(flags))


def clang(build, *words):
    return subprocess.run(["clang++", *words], cwd=build, capture_output=True, text=True, check=False)


def precompiled(build, folder, names, flags):
    """The headers that many sources include, precompiled and looked at once: otherwise they are most of the work."""
    included = collections.Counter(header for name in names for header in includes(name) - {name})
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in {*names, *included}]
    headers = sorted({"<mpi.h>"}.union(*map(LIBRARY.findall, texts)))
    headers += sorted(f'"{name}"' for name, times in included.items() if times * OFTEN >= len(names))
    header, made = folder / "often.hpp", folder / "often.pch"
    header.write_text("".join(f"#include {name}\n" for name in headers), encoding="utf-8")
    run = clang(build, *FLAGS, *flags, "-fpch-instantiate-templates", "-x", "c++-header", str(header), "-o", str(made))
    if run.returncode != 0:
        sys.exit(run.stderr)
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default="build", metavar="BUILD",
                        help="a folder of Meson's whose generated sources have been made (default: build)")
    build = ROOT / parser.parse_args().build
    if not (build / "compile_commands.json").exists():
        sys.exit(f"clang_warnings.py: {build} is no build folder of Meson's: scripts/test.sh makes one")
    names, units, flags = sources(build)
    failed = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        headers = precompiled(build, pathlib.Path(folder), names, flags)
        command = [build, "-fsyntax-only", *FLAGS, *flags]

        def look_at(unit):
            """A name of the source's own may be one of a header that it does not include: then without those."""
            run = clang(*command, "-include-pch", str(headers), str(unit))
            return run if run.returncode == 0 else clang(*command, str(unit))

        for run in pool.map(look_at, units):
            failed += run.returncode != 0
            sys.stderr.write(run.stderr)
    print(f"locks and static objects: {len(names)} files, compiled as {len(units)}, {failed} with faults")
    return 1 if failed or not names else 0


if __name__ == "__main__":
    sys.exit(main())
