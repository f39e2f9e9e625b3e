#!/usr/bin/env bash
# Builds the book: docs/ as pages, plus the repository files that they link to. So no link leaves
# the book.
#
#   scripts/book.sh              into target/book; the first page is target/book/docs/index.html
#   scripts/book.sh DIR          into DIR, which must be empty or missing
#   scripts/book.sh --install    only installs mdbook
#
# A warning of mdbook is an error here. Tests follow its links in a browser (docs::book).
set -Eeuo pipefail
cd "$(dirname "$0")/.."

version=0.5.4

mdbook=.tools/mdbook/bin/mdbook
if ! "$mdbook" --version 2>/dev/null | grep -qx "mdbook v$version"; then
    # Compiles for two minutes, once. Omits the server.
    CARGO_PROFILE_DEV_DEBUG=false cargo install --locked --quiet --debug --root .tools/mdbook mdbook \
        --version "$version" --no-default-features --features search
fi
[ "${1:-}" != --install ] || exit 0

to=${1:-target/book}
[ $# -gt 0 ] || rm -rf "$to"
mkdir -p "$to"
to=$(cd "$to" && pwd)

said=$("$mdbook" build --dest-dir "$to/docs" 2>&1) || { echo "$said" >&2; exit 1; }
if grep -E '^ *(WARN|ERROR)|\[(WARN|ERROR)\]' <<<"$said" >&2; then
    echo "the book has faults" >&2
    exit 1
fi

# Link targets outside of docs/: `](../config/…)`, and one more `../` in docs/with/.
grep -rhoE '\]\((\.\./)+[^)#]+' docs | sed -E 's|^\]\((\.\./)+||' | sort -u | while read -r linked; do
    [ ! -f "$linked" ] || cp --parents "$linked" "$to"
done
