#!/usr/bin/env python3
"""Writes a manual page: of a program, from what its --help says; or gpudt(7), from sections of the README and
the page of variables.

usage: man_page.py OUTPUT NAME VERSION PROGRAM                   (section 1)
       man_page.py OUTPUT gpudt VERSION README.md variables.md   (section 7)
"""

import os
import pathlib
import re
import subprocess
import sys

SUMMARY = "GPU pointers with any datatype, over any MPI"
SECTIONS = ["On your own program", "What is covered", "Variables", "Limits"]


def escaped(text):
    """Without Markdown's marks; backslashes and leading dots mean something in a manual page."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]*)`|\*\*([^*]*)\*\*", lambda m: rf"\fB{m[1] or m[2]}\fR", text)
    return re.sub(r"^([.'])", r"\\&\1", text)


def verbatim(lines):
    return [".nf", *(re.sub(r"^([.'])", r"\\&\1", line.replace("\\", "\\e").replace("-", "\\-")) for line in lines), ".fi"]


# --- from --help -----------------------------------------------------------------------------------------------------

def parts_of(text):
    """(heading, lines) in order; what stands before the first heading has none."""
    parts = [("", [])]
    for line in text.splitlines():
        heading = re.match(r"([A-Z]?[a-z][a-z ]*):$", line)
        if heading:
            parts.append((heading[1], []))
        else:
            parts[-1][1].append(line)
    return parts


def options_page(lines):
    """One entry for each option; its text begins two columns behind it, or on the next line."""
    page = []
    for line in lines:
        option = re.match(r" {1,3}(-\S.*?|[A-Z]\S*)(?: {2,}(.*))?$", line)
        if option:
            page += [".TP", rf"\fB{escaped(option[1])}\fR", escaped(option[2] or "")]
        elif line.strip():
            page.append(escaped(line.strip()))
    return [line for line in page if line]


def page_of_program(name, program):
    environment = dict(os.environ, COLUMNS="100")
    environment.pop("LD_PRELOAD", None)
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=True, env=environment)
    text = done.stdout.replace(program, name)
    usage = re.search(r"(?im)^usage: (.*(?:\n {6,}.*)*)$", text)
    text = text.replace(usage[0], "")
    parts = parts_of(text.strip())
    words = " ".join(" ".join(parts[0][1]).split())
    page = [".SH NAME", rf"{escaped(name)} \- {escaped(re.match(r'(.*?)(?:[.:;] |[.]$|$)', words)[1])}",
            ".SH SYNOPSIS", rf"\fB{escaped(' '.join(usage[1].split()))}\fR", ".SH DESCRIPTION", *verbatim(parts[0][1])]
    for heading, lines in parts[1:]:
        page.append(f".SH {heading.upper()}")
        page += options_page(lines) if heading.lower() == "options" else verbatim(lines)
    return [*page, ".SH SEE ALSO", r"\fBgpudt\fR(7)"], 1


# --- from pages ------------------------------------------------------------------------------------------------------

def table_page(rows):
    """An entry for each row, of what its first column names."""
    page = []
    for row in rows:
        cells = [cell.strip() for cell in row.strip().strip("|").split(" | ")]
        if set(row) <= set("|- ") or cells[0] == "variable":
            continue
        page += [".TP", escaped(cells[0]), escaped(cells[1])]
        if len(cells) > 2:
            page.append(f"(Default: {escaped(cells[2])})")
    return page


def section_page(lines):
    page, rows, code = [], [], None
    for line in [*lines, ""]:
        if line.startswith("```"):
            page += verbatim(code) if code is not None else []
            code = [] if code is None else None
        elif code is not None:
            code.append(line)
        elif line.startswith("|"):
            rows.append(line)
        else:
            page += table_page(rows)
            rows = []
            if line.startswith("- "):
                page += [r".IP \(bu 2", escaped(line[2:])]
            else:
                page.append(escaped(line.strip()) if line.strip() else ".PP")
    return page


def page_of_pages(files):
    text = "\n".join(pathlib.Path(file).read_text(encoding="utf-8") for file in files)
    page = [".SH NAME", rf"gpudt \- {SUMMARY}"]
    for name in SECTIONS:
        section = re.search(rf"(?ms)^##? {name}\n(.*?)(?=^##? |\Z)", text)
        page += [f".SH {name.upper()}", *section_page(section[1].strip().splitlines())]
    return [*page, ".SH SEE ALSO", r"\fBgpudt\-run\fR(1), \fBgpudt\-doctor\fR(1)"], 7


def main():
    output, name, version, *sources = sys.argv[1:]
    page, section = page_of_pages(sources) if name == "gpudt" else page_of_program(name, sources[0])
    with open(output, "w", encoding="utf-8") as file:
        file.write("\n".join([f'.TH {name.upper()} {section} "" "gpudt {version}"', ".ad l", *page]) + "\n")


if __name__ == "__main__":
    main()
