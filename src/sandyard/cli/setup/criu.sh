#!/usr/bin/env bash
# Install a CRIU that works on this kernel, so that the memory of a long-paused sandbox can be written to disk. Optional.
#
# Prints the path of a `criu` that is new enough. Tries, in this order: one that is already installed; the machine's own package; the
# package of a later release of the same distribution, from the machine's own mirror. The last is unpacked with all its libraries
# (including its own C library) into that directory. This changes neither the machine's packages nor apt's state.
# Idempotent. Exits with 1 and a message if no suitable CRIU is available.
# shellcheck disable=SC2034,SC2154 # later_release.sh uses `program`, and sets `scratch`, `suite` and `version`
program=criu
prefix=/var/lib/sandyard/criu

at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n1)" = "$2" ]; }
version_of() { "$1" --version 2>/dev/null | sed -n 's/^Version: *//p'; }
is_new_enough() { [ -n "$1" ] && at_least "$1" "$need"; }
offered_version() { candidate_of criu private_apt; }

# Linux 6.16 returns an error for SO_PASSCRED on internet sockets, which CRIU handles since 4.2.
need=4.1
if at_least "$(uname -r | sed 's/[^0-9.].*//')" 6.16; then need=4.2; fi

if print_installed; then exit; fi

require_root_and_apt CRIU "install CRIU >= $need with this machine's package manager"
candidate=$(candidate_of criu)
if is_new_enough "$candidate"; then
    install_package criu
    command -v criu
    exit 0
fi

case "${ID:-}" in
    debian) suites="stable testing unstable" components=main ;;
    ubuntu) suites=devel components="main universe" ;;
    *) fail "unsupported distribution: ${ID:-unknown}; install CRIU >= $need manually (found: ${candidate:-none})" ;;
esac
find_later_release "$suites" "$components"

say "downloading criu $version from $suite, with its libraries, to $prefix"
private_apt apt-get -q=2 -y --download-only install criu >"$scratch/download.log" 2>&1 ||
    fail "download failed: $(first_line '^E:' "$scratch/download.log")"
for package in "$scratch"/archives/*.deb; do dpkg-deb -x "$package" "$scratch/root"; done

# Keep only the libraries, the loader and CRIU itself (about 15 MB).
libraries=$(find "$scratch/root" -name 'libc.so.6' -printf '%h\n' | head -n1)
loader=$(find "$libraries" -maxdepth 1 -name 'ld-linux*' | head -n1)
binary=$(find "$scratch/root" -path '*/sbin/criu' | head -n1)
[ -n "$loader" ] && [ -n "$binary" ] || fail "unexpected layout of the criu $version package"
mkdir "$scratch/kept"
find "$libraries" -maxdepth 1 \( -name '*.so' -o -name '*.so.*' \) -exec cp -a {} "$scratch/kept/" \;
cp -L "$loader" "$scratch/kept/ld.so"
cp "$binary" "$scratch/kept/criu.bin"
place=$prefix/${version//[^0-9A-Za-z.+~-]/_}
printf '#!/bin/sh\nexec "%s/ld.so" --library-path "%s" "%s/criu.bin" "$@"\n' "$place" "$place" "$place" >"$scratch/kept/criu"
chmod 755 "$scratch/kept" "$scratch/kept/criu" "$scratch/kept/criu.bin" "$scratch/kept/ld.so"
rm -rf "$place"
mv "$scratch/kept" "$place"
works=$(version_of "$place/criu")
[ -n "$works" ] || fail "the downloaded criu does not start: $("$place/criu" --version 2>&1 | head -n1)"
ln -sfn "$place/criu" "$scratch/link"
mv -T "$scratch/link" "$prefix/criu"
echo "$prefix/criu"
