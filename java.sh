#!/bin/sh
# Spark runs on Java 17 or later: look for it, install Debian's where it is missing, or say what to install.
set -eu
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
recent() {
    version=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
    [ "${version:-0}" -ge 17 ]
}
recent && exit 0
[ -z "${JAVA_HOME:-}" ] || { echo "JAVA_HOME is $JAVA_HOME, which has no Java 17 or later" >&2; exit 1; }
for package in default-jre-headless openjdk-17-jre-headless; do
    "$(dirname "$0")/packages.sh" "$package" && recent && exit 0
done
echo "needed: Java 17 or later; on Debian, sudo apt-get install default-jre-headless" >&2
exit 1
