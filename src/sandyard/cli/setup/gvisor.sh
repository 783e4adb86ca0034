#!/usr/bin/env bash
# Install gVisor (runsc), so that sandboxes can have a kernel of their own. Optional.
#
# Prints the path of a `runsc` that is new enough. Tries, in this order: one that is already installed; the machine's own package; the
# package of the distribution's backports or a later release, from the machine's own mirror. The last is unpacked into that
# directory: runsc needs no libraries. This changes neither the machine's packages nor apt's state. Debian's build is from 2024;
# for a later one from gVisor's project, set SANDYARD_RUNSC_PATH.
# Idempotent. Exits with 1 and a message if no suitable runsc is available.
# shellcheck disable=SC2154 # later_release.sh sets `scratch`
prefix=/var/lib/sandyard/gvisor
need=20240729

# The date of a version such as "0.0~20240729.0-4" or "release-20240729.0".
date_of() { sed -n 's/.*\(20[0-9]\{6\}\).*/\1/p' | head -n1; }

for found in "$prefix/runsc" "$(command -v runsc || true)"; do
    if [ -n "$found" ] && [ -x "$found" ] && version=$("$found" --version 2>/dev/null | date_of) && [ "${version:-0}" -ge "$need" ]; then
        echo "$found"
        exit 0
    fi
done

require_root_and_apt gVisor "install runsc $need or later and set SANDYARD_RUNSC_PATH"
candidate=$(candidate_of runsc | date_of)
if [ "${candidate:-0}" -ge "$need" ]; then
    install_package runsc
    command -v runsc
    exit 0
fi

case "${ID:-}" in
    debian) suites="${VERSION_CODENAME:-stable}-backports stable testing unstable" components=main ;;
    ubuntu) suites="${VERSION_CODENAME:-devel}-backports devel" components="main universe" ;;
    *) fail "unsupported distribution: ${ID:-unknown}; install runsc $need or later and set SANDYARD_RUNSC_PATH" ;;
esac
find_mirror
open_scratch "$prefix"

version=
for suite in $suites; do
    select_suite "$suite" "$components" || continue
    version=$({ private_apt apt-cache show runsc 2>/dev/null || true; } | sed -n 's/^Version: *//p' | sort -rV | head -n1)
    [ "$(printf '%s\n' "$version" | date_of)" -ge "$need" ] 2>/dev/null && break
    say "$suite has runsc ${version:-(none)}, but $need or later is needed"
    version=
done
[ -n "$version" ] || fail "no release on this machine's mirror has runsc $need or later"

say "downloading runsc $version from $suite to $prefix"
(cd "$scratch/archives" && private_apt apt-get -q=2 download "runsc=$version") >"$scratch/download.log" 2>&1 ||
    fail "download failed: $(first_line '^E:' "$scratch/download.log")"
dpkg-deb -x "$scratch"/archives/*.deb "$scratch/root"
"$scratch/root/usr/bin/runsc" --version >/dev/null 2>&1 || fail "the downloaded runsc does not start"
mv "$scratch/root/usr/bin/runsc" "$prefix/runsc"
echo "$prefix/runsc"
