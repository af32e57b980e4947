#!/usr/bin/env python3
"""Say which tests failed, and what they last printed: the end of a long log is all that some machines keep of it.

  failures.py build/meson-logs/testlog.json
"""

import argparse
import json

GOOD = ("OK", "EXPECTEDFAIL", "SKIP")
LINES = 40  # of what a test printed


def failures(path):
    """The entries of the tests in this log that failed, in the order they ended."""
    with open(path, encoding="utf-8") as log:
        entries = [json.loads(line) for line in log]
    return [entry for entry in entries if entry["result"] not in GOOD]


def tell(entry):
    print(f"FAILED: {entry['name']}: {entry['result']}, {entry['duration']:.0f} s, status {entry['returncode']}")
    printed = (entry.get("stdout") or "") + (entry.get("stderr") or "")
    for line in printed.splitlines()[-LINES:]:
        print("  " + line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", metavar="FILE", help="a log of meson test, as JSON")
    for path in parser.parse_args().logs:
        for entry in failures(path):
            tell(entry)


if __name__ == "__main__":
    main()
