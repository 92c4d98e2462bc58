#!/bin/sh
# Install Debian packages that are missing. Says what it does; fails if it cannot.
set -eu
missing=""
for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null; then
    echo "needed, and to be installed by hand here:$missing" >&2
    exit 1
fi
sudo=""
if [ "$(id -u)" -ne 0 ]; then
    sudo="sudo -n"
    if ! $sudo true 2>/dev/null; then
        echo "needed, please run: sudo apt-get install$missing" >&2
        exit 1
    fi
fi
echo "installing$missing ..." >&2
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
