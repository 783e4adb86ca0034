# Read by scripts that put a layer together, which run in mount and pid namespaces that end with them.
# Nothing of the host's is mounted below the new root: whatever a script removes there by mistake is its own.

open_root() { # BASE WORK: $root is an overlay above BASE, whose upper directory is WORK/rootfs
  root=$2/merged
  mkdir -p "$2/rootfs" "$2/overlay" "$root"
  # no redirects and no metadata copies: the layer is stacked anew above this base, in other mounts
  mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/rootfs,workdir=$2/overlay,redirect_dir=off,metacopy=off,index=off" "$root"
  mount -t tmpfs -o mode=755 devices "$root/dev"
  for device in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 0666 "$root/dev/${device%:*}" c 1 "${device#*:}"
  done
  mknod -m 0666 "$root/dev/tty" c 5 0
  mkdir -m 1777 "$root/dev/shm"
  mkdir "$root/dev/pts"
  mount -t devpts -o newinstance,ptmxmode=0666 terminals "$root/dev/pts"
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  mount -t proc proc "$root/proc"
}

open_archives() { # WORK: apt in $root reaches the archives as the machine's does, with the settings in WORK
  cp /etc/resolv.conf "$1/resolv.conf"
  mount --bind "$1/resolv.conf" "$root/etc/resolv.conf"
  cp "$1/apt.conf" "$1/ca.crt" "$root/tmp/"
}

close_archives() {
  umount "$root/etc/resolv.conf"
  rm -rf "$root/var/lib/apt/lists"/* "$root/tmp/apt.conf" "$root/tmp/ca.crt"
}

close_root() { # Fails while a process uses it. Each is a command of its own: `set -e` does not see the first of `a && b` fail.
  umount "$root/dev/pts"
  umount "$root/dev"
  umount "$root/proc"
  umount "$root"
  rmdir "$root"
}
