#!/usr/bin/env python3
"""Says which tests failed, and what they last printed: the end of a long log is all that some machines keep of it.

usage: failures.py FILE...   of meson test's logs, meson-logs/testlog.json
"""

import json
import sys

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
    for path in sys.argv[1:]:
        for entry in failures(path):
            tell(entry)


if __name__ == "__main__":
    main()
