#!/usr/bin/env bash
# An empty PostgreSQL. It refuses to run as root.
as=()
mkdir postgres
if [ "$(id -u)" = 0 ]; then
    chown 65534:65534 postgres
    as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
fi
"${as[@]}" initdb --auth-local=trust --auth-host=scram-sha-256 --username=postgres --encoding=UTF8 --no-sync -D "$PWD/postgres"
exec "${as[@]}" postgres -D "$PWD/postgres" -k "$PWD/postgres"
