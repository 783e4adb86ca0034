"""Shell scripts that run as root in the sandbox of a build, for steps that are not user commands. They work in any
POSIX shell."""

from __future__ import annotations

_FUNCTIONS = """
home_of() {{
    (getent passwd "$1" 2>/dev/null || grep "^$1:" /etc/passwd || echo "::::::/:") | head -n 1 | cut -d: -f6
}}
# create a directory and its parents; new ones belong to the user
new=
make_directory() {{
    [ -d "$1" ] && return 0
    new=$1; parent=$(dirname "$1")
    while [ ! -e "$parent" ]; do new=$parent; parent=$(dirname "$parent"); done
    mkdir -p "$1" && chown -R "$2" "$new"
}}
"""

MAKE_DIRECTORY = (
    "set -eo pipefail"
    + _FUNCTIONS
    + """
user={user} workdir={workdir} path={path}
[ -n "$workdir" ] || workdir=$(home_of "$user")
case $path in /*) ;; *) path=$workdir/$path ;; esac
make_directory "$path" "$user:"
cd "$path" && pwd
[ -z "$new" ] || echo new
"""
)
"""Prints the absolute path, and `new` on a second line if it was created."""

ADD_USER = """
set -e
user={user}
if id -u "$user" >/dev/null 2>&1; then exit 0; fi
case $user in *[!0-9]*) ;; *) echo "user id $user does not exist" >&2; exit 1 ;; esac
if command -v useradd >/dev/null; then
    useradd --create-home --shell /bin/bash "$user"
else
    adduser -D -g "" -s /bin/bash "$user"
fi >&2
echo new
"""
"""Prints `new` if the user was created."""

PATH_FILE = """
set -e
mkdir -p /etc/profile.d
printf '%s\\n' {line} > /etc/profile.d/00-template-path.sh
"""

COPY = (
    "set -eo pipefail"
    + _FUNCTIONS
    + """
work={work} source={source} target={target} owner={owner} mode={mode} user={user} workdir={workdir}
trap 'rm -rf "$work"' EXIT
[ -n "$workdir" ] || workdir=$(home_of "$user")
case $owner in *:* | [0-9]*) ;; *) owner=$owner: ;; esac
into_directory=
case $target in . | .. | */ | */. | */..) into_directory=yes ;; esac
case $target in /*) ;; *) target=$workdir/$target ;; esac
mkdir "$work/files"
tar -xf "$work/archive" -C "$work/files"
rm "$work/archive"
entry=$work/files/$source
[ -e "$entry" ] || [ -L "$entry" ] || {{ echo "no uploaded file matches $source" >&2; exit 1; }}
chown -hR "$owner" "$entry"
if [ -d "$entry" ] && [ ! -L "$entry" ]; then
    [ -z "$mode" ] || chmod -R "$mode" "$entry"
    make_directory "$target" "$owner"
    # like Docker: existing directories are merged, also through links; files are replaced, never written through
    tar_options=
    if tar --version 2>/dev/null | grep -q GNU; then tar_options="--keep-directory-symlink --no-overwrite-dir"; fi
    (cd "$entry" && tar -cf - .) | tar -xpf - -C "$target" $tar_options
else
    [ -z "$mode" ] || [ -L "$entry" ] || chmod "$mode" "$entry"
    if [ -n "$into_directory" ] || [ -d "$target" ]; then
        make_directory "$target" "$owner"
        target=$target/$(basename "$entry")
    else
        make_directory "$(dirname "$target")" "$owner"
    fi
    [ -L "$target" ] && rm "$target"
    mv -f "$entry" "$target"
fi
"""
)
