#!/usr/bin/env bash
# Repeats and times a newcomer's first steps: a fresh clone of the last commit on a clean Debian 12 without our packages.
# usage, as root: clean.sh demo | test [MAKE TARGETS]      `test` runs make test, or the named targets one after another
#
# Mounts and processes live in namespaces of their own and end with them, whatever happens. Only then is the root file
# system removed. Packages come from the same sources as this machine's own apt and pip use.
set -euo pipefail

fail() { echo "test-clean: $*" >&2; exit 1; }
newcomer() {
  chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME="$HOME" LANG=C.UTF-8 \
    "${carried[@]}" "$@"
}
watched() {
  newcomer bash -c 'cd && cd salus && TIMEFORMAT="test-clean: $* took %R s; processor: %U s user, %S s system" && time "$@"' \
    bash "$@"
}

if [ "${1:-}" = --inside ]; then
  root=$2; shift 2
  mapfile -t carried < <(env | grep -E '^PIP_|_proxy=|_PROXY=' || true)
  mount --make-rprivate /
  # slurmd requires / to be a mount point.
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  # pip may be configured to use folders of this machine.
  for place in $(python3 -m pip config list 2>/dev/null | grep -oE "(file://)?/[^' ,]+" | sed -e 's,^file://,,' -e 's,/simple$,,' | sort -u); do
    [ -d "$place" ] || continue
    mkdir -p "$root$place"
    mount --bind -o ro "$place" "$root$place"
  done
  for target in "$@"; do
    watched make "$target"
  done
  exit
fi

part=${1:-}
case "$part" in demo | test) shift ;; *) fail "no such part; run make test-clean PART=demo or PART=test" ;; esac
[ "$(id -u)" -eq 0 ] || fail "must run as root, for debootstrap and chroot"
command -v debootstrap >/dev/null || fail "debootstrap is missing; run: apt-get install debootstrap"
cd "$(dirname "$0")/../.."
base=$PWD/build/chroot/bookworm-clean
if [ ! -e "$base/.ready" ]; then
  echo "test-clean: creating $base; this takes a minute or two, once"
  rm -rf "$base"
  mkdir -p "$base"
  mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | head -1)}
  debootstrap --variant=minbase --include=git,make,ca-certificates,man-db bookworm "$base" ${mirror:+"$mirror"} >"$base.log" 2>&1 \
    || fail "debootstrap failed; see $base.log"
  touch "$base/.ready"
fi
root=$(mktemp -d "$base.XXXXXX")
inside=
ending() {
  # unshare does not forward signals, but all processes inside end with it.
  if [ -n "$inside" ]; then kill -9 "$inside" 2>/dev/null || true; wait "$inside" 2>/dev/null || true; fi
  # The mounts are in the other namespace. If one were here, rm would delete what is mounted.
  if grep -q " $root/" /proc/mounts; then fail "$root still has mounts; unmount them, then remove it"; fi
  rm -rf "$root"
}
trap ending EXIT
trap 'exit 143' TERM INT
cp -a "$base/." "$root/"
chmod 755 "$root"
for file in /etc/hosts /etc/resolv.conf /etc/pip.conf "$HOME/.config/pip/pip.conf" /etc/ssl/certs/ca-certificates.crt; do
  [ -e "$file" ] && mkdir -p "$root$(dirname "$file")" && cp -L "$file" "$root$file"
done
grep -lsE 'Proxy|Acquire::' /etc/apt/apt.conf.d/* | xargs -r cp -t "$root/etc/apt/apt.conf.d/"
git clone -q --no-local . "$root$HOME/salus"
if [ "$part" = demo ]; then
  # The second run finds the environment set up.
  targets=(demo demo)
else
  targets=("${@:-test}")
fi
unshare --mount --pid --uts --ipc --fork --kill-child bash tests/packaging/clean.sh --inside "$root" "${targets[@]}" &
inside=$!
wait "$inside"
inside=
[ "$part" = test ] || [ -s "$root$HOME/salus/build/demo/report.html" ] || fail "no report was written"
echo "test-clean: ok: ${targets[*]}"
