#!/usr/bin/env bash
# Install gVisor (runsc), so that sandboxes can have a kernel of their own. Optional.
#
# Prints the path of a `runsc` that is new enough. Tries, in this order: one that is already installed; the machine's own package; the
# package of the distribution's backports or a later release, from the machine's own mirror. The last is unpacked into that
# directory: runsc needs no libraries. This changes neither the machine's packages nor apt's state. Debian's build is from 2024;
# for a later one from gVisor's project, set SANDYARD_RUNSC_PATH.
# Idempotent. Exits with 1 and a message if no suitable runsc is available.
# shellcheck disable=SC2034,SC2154 # later_release.sh uses `program`, and sets `scratch`, `suite` and `version`
program=runsc
prefix=/var/lib/sandyard/gvisor
need=20240729

# The date of a version such as "0.0~20240729.0-4" or "release-20240729.0".
date_of() { sed -n 's/.*\(20[0-9]\{6\}\).*/\1/p' | head -n1; }
version_of() { "$1" --version 2>/dev/null; }
is_new_enough() {
    local date
    date=$(printf '%s\n' "$1" | date_of)
    [ "${date:-0}" -ge "$need" ]
}
offered_version() {
    { private_apt apt-cache show runsc 2>/dev/null || true; } | sed -n 's/^Version: *//p' | sort -rV | head -n1
}

if print_installed; then exit; fi

require_root_and_apt gVisor "install runsc $need or later and set SANDYARD_RUNSC_PATH"
if is_new_enough "$(candidate_of runsc)"; then
    install_package runsc
    command -v runsc
    exit 0
fi

case "${ID:-}" in
    debian) suites="${VERSION_CODENAME:-stable}-backports stable testing unstable" components=main ;;
    ubuntu) suites="${VERSION_CODENAME:-devel}-backports devel" components="main universe" ;;
    *) fail "unsupported distribution: ${ID:-unknown}; install runsc $need or later and set SANDYARD_RUNSC_PATH" ;;
esac
find_later_release "$suites" "$components"

say "downloading runsc $version from $suite to $prefix"
(cd "$scratch/archives" && private_apt apt-get -q=2 download "runsc=$version") >"$scratch/download.log" 2>&1 ||
    fail "download failed: $(first_line '^E:' "$scratch/download.log")"
dpkg-deb -x "$scratch"/archives/*.deb "$scratch/root"
"$scratch/root/usr/bin/runsc" --version >/dev/null 2>&1 || fail "the downloaded runsc does not start"
mv "$scratch/root/usr/bin/runsc" "$prefix/runsc"
echo "$prefix/runsc"
