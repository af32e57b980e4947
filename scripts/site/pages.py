"""A hook of MkDocs: pages of the site that lie elsewhere in the source tree, and links between them."""

import pathlib
import re
import sys

from mkdocs.structure.files import File

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from pictures import with_pictures  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ELSEWHERE = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "tests.md": "tests/README.md",
             "examples.md": "examples/README.md", "changelog.md": "CHANGELOG.md"}
# Names in the first column of a table stay whole.
STYLE = ".md-typeset td:first-child code { white-space: nowrap; }\n"


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


def page_of(target):
    """The page that a link of the source tree leads to; None if it leads out of the site."""
    place, _, anchor = target.partition("#")
    name = place.removeprefix("../").removeprefix("docs/")
    page = {where: page for page, where in ELSEWHERE.items()}.get(name, name)
    known = page in ELSEWHERE or (ROOT / "docs" / page).exists()
    return page + ("#" + anchor if anchor else "") if known else None


def relinked(match):
    text, target = match[1], match[2]
    if target.startswith(("http", "#")):
        return match[0]
    page = page_of(target)
    return f"[{text}]({page})" if page else text


def on_files(files, config):
    for name, where in ELSEWHERE.items():
        files.append(File.generated(config, name, content=text_of(where)))
    files.append(File.generated(config, "style.css", content=STYLE))
    return files


def on_page_markdown(markdown, **_):
    markdown = with_pictures(markdown)
    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", relinked, markdown)
