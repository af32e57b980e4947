#!/usr/bin/env bash
# Builds the documentation as a site, with MkDocs Material from PyPI in a folder of its own; warnings are errors.
#
# usage: site.sh [FOLDER]    (default: build-site)
# e.g. site.sh, then open build-site/index.html in a browser
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../common.sh"

tools=$root/.site-tools
folder=$(realpath -m "${1:-$root/build-site}")
if ! "$tools/bin/mkdocs" --version >/dev/null 2>&1; then
  say "site: MkDocs Material, into $tools"
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check 'mkdocs-material==9.*'
fi
NO_MKDOCS_2_WARNING=1 "$tools/bin/mkdocs" build --quiet --strict --config-file "$root/scripts/site/mkdocs.yml" --site-dir "$folder"
say "site: $folder/index.html"
