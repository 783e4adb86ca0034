#!/usr/bin/env bash
# The start of every script in this directory: `sandyard setup` runs, and prints, this file followed by the script. It takes packages
# from a later release of this machine's distribution, from the machine's own mirror, without changing the machine's packages or
# apt's state.
#
# A script sets `program` (also the name of its package), `prefix` (the directory for what is unpacked) and `need` (the oldest version
# that works), and defines the functions `version_of PATH`, `is_new_enough VERSION` and `offered_version`: what the selected suite has.
# shellcheck disable=SC2154 # the script sets them
set -euo pipefail

say() { echo "sandyard setup: $*" >&2; }
fail() { say "$*"; exit 1; }
first_line() { grep -m1 "$1" "$2" || tail -n1 "$2"; }

require_root_and_apt() { # PROGRAM WITHOUT_APT
    [ "$(id -u)" = 0 ] || fail "installing and using $1 requires root"
    command -v apt-get >/dev/null || fail "apt-get not found; $2"
    # shellcheck disable=SC1091
    . /etc/os-release
}

# The version of a package that apt would install, or nothing.
candidate_of() { "${@:2}" apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: *//p' | grep -vFx '(none)' || true; }

install_package() { # PACKAGE
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$1" >&2 || fail "apt-get could not install $1"
}

print_installed() { # prints the path of an installed program that is new enough; fails if there is none
    local path
    for path in "$prefix/$program" "$(command -v "$program" || true)"; do
        if [ -n "$path" ] && [ -x "$path" ] && is_new_enough "$(version_of "$path")"; then
            echo "$path"
            return
        fi
    done
    return 1
}

find_mirror() { # sets `keyring` and `mirror`
    keyring=/usr/share/keyrings/$ID-archive-keyring.gpg
    [ -r "$keyring" ] || fail "cannot verify packages: $keyring is missing"
    # shellcheck disable=SC2016 # apt-get expands these
    mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
        sed -n "s/^${VERSION_CODENAME:-none} //p" | head -n1)
    [ -n "$mirror" ] || fail "no mirror of $ID ${VERSION_CODENAME:-} in this machine's apt sources"
}

open_scratch() { # sets `scratch`, a directory in `prefix` that is removed at the end
    mkdir -p "$prefix"
    exec 9>"$prefix/.lock"
    flock 9
    scratch=$(mktemp -d "$prefix/.get.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    mkdir -p "$scratch"/{sources,lists/partial,archives/partial,root}
    : >"$scratch/status" # an empty status: apt downloads every library and uses none of the machine's
}

private_apt() { # TOOL ARGUMENT…: runs one of apt's programs on the selected suite alone
    local tool=$1
    shift
    "$tool" -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$scratch/sources" -o Dir::Etc::preferencesparts=/dev/null \
        -o Dir::State::lists="$scratch/lists" -o Dir::State::status="$scratch/status" -o Dir::State="$scratch" \
        -o Dir::Cache::archives="$scratch/archives" -o Dir::Cache::pkgcache="" -o Dir::Cache::srcpkgcache="" \
        -o APT::Sandbox::User=root -o Acquire::Languages=none -o APT::Install-Recommends=false "$@"
}

select_suite() { # SUITE COMPONENTS: returns whether the mirror has it
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\nSigned-By: %s\n' "$mirror" "$1" "$2" "$keyring" \
        >"$scratch/sources/later.sources"
    private_apt apt-get -q=2 update >"$scratch/update.log" 2>&1 && return
    say "no usable package list for $1: $(first_line '^[EW]:' "$scratch/update.log")"
    return 1
}

find_later_release() { # SUITES COMPONENTS; sets `suite` and `version`, those of the first suite whose package is new enough
    find_mirror
    open_scratch
    for suite in $1; do
        select_suite "$suite" "$2" || continue
        version=$(offered_version)
        if is_new_enough "$version"; then return; fi
        say "$suite has $program ${version:-(none)}, but this machine needs $need or later"
    done
    fail "no release on this machine's mirror has $program $need or later"
}
