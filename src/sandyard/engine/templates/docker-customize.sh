#!/bin/sh
# Puts Docker's layer together, in mount and pid namespaces that end with it.
#   $1 the base's root   $2 the work directory, with apt's settings; rootfs/ for the layer
#   $3 the packages to install   $4 those to install if the archives have them   $5 of these, the first that they have
set -eu
base=$1 work=$2 packages=$3 wanted=$4 compose=$5
. "${0%/*}/layered.sh"
open_root "$base" "$work"
open_archives "$work"

echo "step 0.02 reading package lists"
APT_CONFIG=/tmp/apt.conf DEBIAN_FRONTEND=noninteractive PACKAGES=$packages WANTED=$wanted COMPOSE=$compose chroot "$root" sh -euc '
  apt-get -q update
  exists() { apt-cache show --no-all-versions "$1" >/dev/null 2>&1; }
  for name in $WANTED; do if exists "$name"; then PACKAGES="$PACKAGES $name"; fi; done
  for name in $COMPOSE; do if exists "$name"; then PACKAGES="$PACKAGES $name" && break; fi; done
  echo "step 0.06-0.50 downloading packages"
  apt-get -qy install --no-install-recommends --download-only $PACKAGES
  echo "step 0.50-0.90 installing packages"
  printf "#!/bin/sh\nexit 101\n" >/usr/sbin/policy-rc.d && chmod 0755 /usr/sbin/policy-rc.d # nothing is started here
  apt-get -qy install --no-install-recommends $PACKAGES
  rm /usr/sbin/policy-rc.d
  apt-get clean
  adduser --quiet user docker'
close_archives

echo "step 0.92 adding settings"
# all ids of the sandbox, each mapped to itself
for file in subuid subgid; do
  sed -i '/^root:/d' "$root/etc/$file"
  echo root:1:65535 >>"$root/etc/$file"
done
mkdir -p "$root/etc/docker" "$root/opt/docker"
cat >"$root/etc/docker/daemon.json" <<'EOF'
{
  "data-root": "/var/lib/docker",
  "storage-driver": "fuse-overlayfs",
  "default-runtime": "crun",
  "runtimes": {"crun": {"path": "/usr/bin/crun"}},
  "userland-proxy-path": "/usr/bin/rootlesskit-docker-proxy"
}
EOF
cat >"$root/opt/docker/start" <<'EOF'
#!/bin/sh
# Runs Docker as root of its own user, mount, pid and network namespaces. Published ports are ports of the sandbox.
set -u
export HOME=/root XDG_RUNTIME_DIR=/run/docker-engine PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec >>/var/log/docker.log 2>&1
while :; do
  rm -rf "$XDG_RUNTIME_DIR" /run/docker.sock # also what an earlier start or the original of a fork left here
  mkdir -m 0700 "$XDG_RUNTIME_DIR"
  rootlesskit --state-dir="$XDG_RUNTIME_DIR/rootlesskit" --pidns --propagation=rslave \
    --net=slirp4netns --mtu=65520 --disable-host-loopback --port-driver=builtin \
    dockerd --rootless --config-file=/etc/docker/daemon.json --host=unix:///run/docker.sock --group=docker
  echo "Docker ended with exit code $?, and is started again"
  sleep 1
done
EOF
chmod 0755 "$root/opt/docker/start"
# Compose 1 is a program of its own; `docker compose` is how it is called today
if ! find "$root"/usr/lib*/docker/cli-plugins -name docker-compose 2>/dev/null | grep -q .; then
  mkdir -p "$root/usr/libexec/docker/cli-plugins"
  cat >"$root/usr/libexec/docker/cli-plugins/docker-compose" <<'EOF'
#!/bin/sh
if [ "${1-}" = docker-cli-plugin-metadata ]; then
  echo '{"SchemaVersion": "0.1.0", "Vendor": "Docker Inc.", "Version": "1", "ShortDescription": "Docker Compose"}'
  exit
fi
shift # compose
exec docker-compose "$@"
EOF
  chmod 0755 "$root/usr/libexec/docker/cli-plugins/docker-compose"
fi

# A template that lacks what is promised is not published
echo "step 0.94 trying it out"
chroot "$root" sh -euc '
  for tool in dockerd rootlesskit rootlesskit-docker-proxy slirp4netns fuse-overlayfs newuidmap crun iptables; do
    command -v "$tool" >/dev/null || { echo "$tool is missing"; exit 1; }
  done
  docker compose version >/dev/null
  id -Gn user | grep -qw docker'
rm -rf "$root/var/log/apt" "$root/var/cache/debconf"/*-old "$root/root/.docker"
: >"$root/etc/machine-id"

close_root
rm -rf "$work/overlay" "$work/apt.conf" "$work/ca.crt" "$work/resolv.conf"
