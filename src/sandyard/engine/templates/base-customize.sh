#!/bin/sh
# The last step of building `base`, run by mmdebstrap with the new root as $1 and Node's tree as $2.
set -eu
root=$1 node=$2

# Node and npm, in /usr/local as on nodejs.org's own archives
cp -a --no-preserve=ownership "$node/." "$root/usr/local/"

chroot "$root" useradd --create-home --uid 1000 --user-group --shell /bin/bash user
cat >"$root/etc/sudoers.d/user" <<'EOF'
user ALL=(ALL:ALL) NOPASSWD: ALL
Defaults:user !requiretty
Defaults env_keep += "SSL_CERT_FILE REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS NPM_CONFIG_GLOBALCONFIG"
Defaults env_keep += "http_proxy https_proxy ftp_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY FTP_PROXY ALL_PROXY NO_PROXY"
EOF
chmod 0440 "$root/etc/sudoers.d/user"
# `pip install` and `npm install -g` work without sudo, and what they install is on everybody's PATH
chown -R --no-dereference 1000:1000 "$root/usr/local"

# Every command of the SDKs starts a login shell: bash knows who it is and need not start a program to ask
sed -i 's/"$(id -u)"/"${EUID:-$(id -u)}"/' "$root/etc/profile"

echo sandbox >"$root/etc/hostname"
printf '127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n' >"$root/etc/hosts"
echo 'LANG=C.UTF-8' >"$root/etc/default/locale"
rm -f "$root/etc/resolv.conf" && : >"$root/etc/resolv.conf" # the driver says what it is
: >"$root/etc/machine-id"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # there is no init: packages start no services
chmod 0755 "$root/usr/sbin/policy-rc.d"
# sshd is for `sandyard ssh`, which runs it for one connection with a key of that sandbox: it is no service, and a key that every
# sandbox had would be nobody's
rm -f "$root"/etc/ssh/ssh_host_*
: >"$root/etc/ssh/sshd_not_to_be_run"

# A template that lacks what is promised is not published.
chroot "$root" runuser -u user -- env -i HOME=/home/user PATH=/usr/local/bin:/usr/bin:/bin sh -euc '
  cd
  test "$(sudo -n id -u)" = 0
  for tool in bash git curl python3 python node npm npx gcc make jq rg ssh tput; do command -v "$tool" >/dev/null; done
  test -x /usr/sbin/sshd
  node -e "process.exit(0)" && npm --version >/dev/null && npx --version >/dev/null
  python3 -m pip --version >/dev/null && python3 -m venv .check && rm -rf .check
'
rm -rf "$root/home/user/.npm" "$root/home/user/.cache" "$root/var/log/apt" "$root/var/cache/debconf"/*-old
