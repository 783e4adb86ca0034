"""The /etc and the home directories of the `host` template: public tables of the machine, and generated accounts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

# used by the loader, libc, TLS, terminals and language runtimes; contains no account, key or address of this machine
PUBLIC = """
    alternatives ld.so.cache ld.so.conf ld.so.conf.d ssl/certs ssl/openssl.cnf ca-certificates.conf
    pki/tls/certs pki/ca-trust/extracted crypto-policies bindresvport.blacklist debian_version fonts gai.conf host.conf
    inputrc localtime lsb-release magic magic.mime mime.types networks os-release perl protocols python3 rpc services
    shells terminfo timezone
""".split()
PUBLIC_PATTERNS = ("python3.[0-9]*", "java-*-openjdk")
USER = "user"
USER_ID = 1000
SYSTEM_ACCOUNTS = (("daemon", 1, 1), ("bin", 2, 2), ("sys", 3, 3), ("man", 6, 12), ("mail", 8, 8), ("www-data", 33, 33))
SYSTEM_GROUPS = (
    ("adm", 4),
    ("tty", 5),
    ("disk", 6),
    ("sudo", 27),
    ("shadow", 42),
    ("utmp", 43),
    ("staff", 50),
    ("users", 100),
)

SUDOERS = f"""\
Defaults env_reset
Defaults secure_path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
Defaults env_keep += "SSL_CERT_FILE REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS NPM_CONFIG_GLOBALCONFIG"
Defaults env_keep += "http_proxy https_proxy ftp_proxy all_proxy no_proxy"
Defaults env_keep += "HTTP_PROXY HTTPS_PROXY FTP_PROXY ALL_PROXY NO_PROXY"
root ALL=(ALL:ALL) ALL
{USER} ALL=(ALL:ALL) NOPASSWD: ALL
"""
PAM = """\
auth required pam_permit.so
account required pam_permit.so
password required pam_deny.so
session required pam_permit.so
"""
NSSWITCH = """\
passwd: files
group: files
shadow: files
hosts: files dns
services: files
protocols: files
"""
PROFILE = """\
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
[ -d "$HOME/.local/bin" ] && PATH="$HOME/.local/bin:$PATH"
export PATH
for file in /etc/profile.d/*.sh; do [ -r "$file" ] && . "$file"; done
unset file
[ -n "${BASH_VERSION-}" ] && [ -r "$HOME/.bashrc" ] && case $- in *i*) . "$HOME/.bashrc" ;; esac
true
"""


def write_etc(root: Path, tree: Path) -> None:
    """Fill `tree`/etc; `root` is the machine's root."""
    etc = tree / "etc"
    etc.mkdir(mode=0o755)
    names = [*PUBLIC, *(path.name for pattern in PUBLIC_PATTERNS for path in (root / "etc").glob(pattern))]
    for name in names:
        _copy_public(root / "etc" / name, etc / name)
    nologin = "/usr/sbin/nologin"
    accounts = [("root", 0, 0, "/root", "/bin/bash"), *((*ids, "/", nologin) for ids in SYSTEM_ACCOUNTS)]
    accounts += [
        ("nobody", 65534, 65534, "/nonexistent", nologin),
        (USER, USER_ID, USER_ID, f"/home/{USER}", "/bin/bash"),
    ]
    groups = [
        ("root", 0),
        *((name, gid) for name, _, gid in SYSTEM_ACCOUNTS),
        *SYSTEM_GROUPS,
        ("nogroup", 65534),
        (USER, USER_ID),
    ]
    texts = {
        "passwd": "".join(f"{name}:x:{uid}:{gid}:{name}:{home}:{shell}\n" for name, uid, gid, home, shell in accounts),
        "group": "".join(f"{name}:x:{gid}:{USER if name == 'sudo' else ''}\n" for name, gid in groups),
        "hostname": "sandbox\n",
        "hosts": "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n",
        "resolv.conf": "",
        "machine-id": "",
        "nsswitch.conf": NSSWITCH,
        "profile": PROFILE,
        "bash.bashrc": "[ -z \"${PS1-}\" ] || PS1='\\u@\\h:\\w\\$ '\n",
        "environment": "",
        "pam.d/other": PAM,
        "pam.d/sudo": PAM,
        "pam.d/su": PAM,
        "default/locale": "LANG=C.UTF-8\n",
    }
    for name, text in texts.items():
        _write_file(etc / name, text, 0o644)
    _write_file(etc / "shadow", "".join(f"{name}:*:19000:0:99999:7:::\n" for name, *_ in accounts), 0o600)
    _write_file(etc / "sudoers", SUDOERS, 0o440)
    for empty in ("profile.d", "sudoers.d", "skel", "apt/apt.conf.d"):
        (etc / empty).mkdir(parents=True, exist_ok=True)


def write_homes(root: Path, tree: Path) -> None:
    """Create an empty /root, and a /home/user with the distribution's skeleton."""
    for path, mode in (("root", 0o700), ("home", 0o755), (f"home/{USER}", 0o755)):
        home = tree / path
        home.mkdir()
        home.chmod(mode)
        for name in (".profile", ".bashrc") if path != "home" else ():
            source = root / "etc/skel" / name
            _write_file(home / name, source.read_text() if source.is_file() else "", 0o644)
    for owned in (tree / "home" / USER, *(tree / "home" / USER).iterdir()):
        give_to_user(owned)


def _copy_public(source: Path, target: Path) -> None:
    """Copy a file, link or tree, except files that are not readable by every user of the machine."""
    if source.is_symlink():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source.readlink())
    elif source.is_dir() and source.stat().st_mode & 0o005 == 0o005:
        target.mkdir(parents=True, exist_ok=True)
        for entry in sorted(source.iterdir()):
            _copy_public(entry, target / entry.name)
    elif source.is_file() and source.stat().st_mode & 0o004:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def _write_file(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def give_to_user(path: Path) -> None:
    """Give a path to the sandbox's user. Without root that is not possible; it is then made accessible to everybody,
    which is equivalent in a sandbox."""
    if os.geteuid() == 0:
        os.chown(path, USER_ID, USER_ID)
    else:
        path.chmod(0o777 if path.is_dir() else 0o666)
