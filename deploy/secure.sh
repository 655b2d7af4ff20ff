#!/bin/sh
# Makes what the services of compose.yml need to know each other, once: the secure folder of the
# node, and in /run/waterclock a credential for each client. What is there already stays.
set -eu
umask 0027
cd /run/waterclock

waterclock secure init --host node --host localhost
cp "$WATERCLOCK_NODE__DATA_FOLDER/secure/ca.pem" ca.pem

give() {  # give NAME RIGHTS...: a file appears only when it is whole
    name=$1
    shift
    test -s "$name.credential" && return
    waterclock secure add "$name" --replace "$@" >"$name.new"
    mv "$name.new" "$name.credential"
}
give worker --publish readings
give prometheus --read '*'

if ! test -s dispatch.secret; then
    python -c 'import secrets; print(secrets.token_urlsafe(32))' >dispatch.new
    mv dispatch.new dispatch.secret
fi
