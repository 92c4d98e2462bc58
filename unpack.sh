#!/bin/sh
# unpack.sh DIRECTORY PACKAGE...: unpack Debian packages into a directory, and install nothing. For programs that
# would start as services, or that exclude each other, such as two syslog daemons. Fails if it cannot.
set -eu
directory=$1
shift
[ "$(cat "$directory/unpacked" 2>/dev/null)" = "$*" ] && exit 0
for tool in apt-get dpkg-deb; do
    command -v $tool >/dev/null || { echo "there is no $tool here to unpack $*" >&2; exit 1; }
done
echo "unpacking $* ..." >&2
rm -rf "$directory"
mkdir -p "$directory/debs"
cd "$directory/debs"
fetch() { apt-get download -qq -o APT::Sandbox::User=root "$@" >/dev/null 2>&1; }
if ! fetch "$@"; then
    sudo=""
    [ "$(id -u)" -eq 0 ] || sudo="sudo -n"
    $sudo apt-get update -qq
    fetch "$@"
fi
for file in *.deb; do
    dpkg-deb -x "$file" ..
done
cd ..
rm -r debs
echo "$*" >unpacked
