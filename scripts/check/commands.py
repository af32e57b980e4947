#!/usr/bin/env python3
"""The commands by which a build compiles each source. Where several files are compiled as one (-Dunity=on), Meson knows of
the file alone that includes them: here each of them has that command.

  commands.py BUILD   prints them, as compile_commands.json has them
"""
import json
import pathlib
import re
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
INCLUDED = re.compile(r'#include\s*[<"]([^<>"]+\.cpp)[>"]')


def compiled_as_one(file):
    """The files that a generated one consists of; none if it is a source itself."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    included = [INCLUDED.fullmatch(line.strip()) for line in lines if line.strip()]
    return [(ROOT / match.group(1)).resolve() for match in included] if included and all(included) else []


def commands(build):
    """The entries of its compile_commands.json, one for each source that an object file is compiled from."""
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        file = build / entry["file"]
        for source in compiled_as_one(file) or [file.resolve()]:
            command = [str(source) if word == entry["file"] else word for word in shlex.split(entry["command"])]
            yield {**entry, "file": str(source), "command": shlex.join(command)}


if __name__ == "__main__":
    json.dump(list(commands(pathlib.Path(sys.argv[1]).resolve())), sys.stdout, indent=1)
