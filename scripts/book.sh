#!/usr/bin/env bash
# Makes the book: docs/ as pages, and beside them the files of the repository that they link to, so that no link leads out of it.
#
#   scripts/book.sh          into target/book; the first page is target/book/docs/index.html
#   scripts/book.sh DIR      into DIR, which is empty or not there
#
# A warning of mdbook's is an error here. Its links are followed by the tests (docs::book).
set -Eeuo pipefail
cd "$(dirname "$0")/.."

version=0.5.4

mdbook=.tools/cargo/bin/mdbook
if ! "$mdbook" --version 2>/dev/null | grep -qx "mdbook v$version"; then
    # Compiles for two minutes, once; without its search and its server.
    cargo install --locked --quiet --root .tools/cargo mdbook --version "$version" --no-default-features
fi

to=${1:-target/book}
[ $# -gt 0 ] || rm -rf "$to"
mkdir -p "$to"
to=$(cd "$to" && pwd)

said=$("$mdbook" build --dest-dir "$to/docs" 2>&1) || { echo "$said" >&2; exit 1; }
if grep -E '^ *(WARN|ERROR)|\[(WARN|ERROR)\]' <<<"$said" >&2; then
    echo "the book has faults" >&2
    exit 1
fi

# What pages link to above docs/: `](../config/…)`, and with one more step from the pages below docs/with/.
grep -rhoE '\]\((\.\./)+[^)#]+' docs | sed -E 's|^\]\((\.\./)+||' | sort -u | while read -r linked; do
    [ ! -f "$linked" ] || cp --parents "$linked" "$to"
done
