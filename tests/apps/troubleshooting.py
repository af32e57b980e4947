#!/usr/bin/env python3
"""Tests that the messages which docs/troubleshooting.md quotes are those that the sources have.

usage: troubleshooting.py SOURCE-FOLDER
"""

import pathlib
import re
import sys
import unittest

SHORTEST = 6  # of a piece that says something


class Troubleshooting(unittest.TestCase):
    root = pathlib.Path()

    @classmethod
    def setUpClass(cls):
        files = [path for folder in ("interpose", "device") for suffix in ("cpp", "hpp")
                 for path in (cls.root / folder).rglob(f"*.{suffix}")]
        source = "\n".join(path.read_text(encoding="utf-8") for path in files)
        # Literals that the compiler joins, and those with something printed between them.
        cls.said = re.sub(r'"\s*"', "", source)

    def quoted(self):
        """Of tables whose first column is what has been said."""
        page = (self.root / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
        said = False
        for line in page.splitlines():
            cell = line.strip("|").split(" | ")[0].strip()
            if not line.startswith("|"):
                said = False
            elif cell == "it said":
                said = True
            elif said and cell.startswith("`"):
                yield cell.strip("`")

    def test_messages(self):
        messages = list(self.quoted())
        self.assertGreater(len(messages), 8)
        for message in messages:
            pieces = [piece.strip(" ,:") for piece in re.split(r"\.\.\.|\d+|:", message)]
            pieces = [piece for piece in pieces if len(piece) >= SHORTEST]
            self.assertTrue(pieces, message)
            for piece in pieces:
                with self.subTest(message, piece=piece):
                    self.assertIn(piece, self.said)


def main():
    Troubleshooting.root = pathlib.Path(sys.argv[1])
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Troubleshooting))
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(0 if failed == 0 and result.testsRun > 0 else 1)


if __name__ == "__main__":
    main()
