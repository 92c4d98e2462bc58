#!/bin/sh
# debian-root.sh DIRECTORY: a clean Debian of the release that is named below, once. Needs root. The mirror is the
# one that this machine's apt uses.
set -eu
release=bookworm
directory=$1
[ -e "$directory/ready" ] && exit 0
[ "$(id -u)" -eq 0 ] || { echo "only root can make a Debian root" >&2; exit 1; }
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Release: $release" | head -n 1)
[ -n "$mirror" ] || { echo "apt has no mirror of $release here" >&2; exit 1; }
echo "making a clean Debian in $directory ..." >&2
rm -rf "$directory"
mkdir -p "$directory"
debootstrap --variant=minbase "$release" "$directory/root" "$mirror" >"$directory/log" 2>&1 ||
    { tail -n 3 "$directory/log" >&2; exit 1; }
rm -rf "$directory"/root/var/cache/apt/archives/*.deb
touch "$directory/ready"
