#!/usr/bin/env bash
# A newcomer's hour: a clean Debian 12 without the project's packages, a fresh clone of the last commit, a stop-watch.
# usage: clean.sh demo | test [MAKE TARGETS]      root; `test` runs make test, or the targets named, in one after another
#
# Mounts and processes live in name spaces of their own and end with them, whatever happens; the root file system is
# removed only then. Packages come from where this machine's own apt and pip get them.
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
  # slurmd wants / to be a mount point.
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  # The environment may point pip to folders of this machine.
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
case "$part" in demo | test) shift ;; *) fail "say which: make test-clean PART=demo|test" ;; esac
[ "$(id -u)" -eq 0 ] || fail "not root; debootstrap and chroot need it"
command -v debootstrap >/dev/null || fail "debootstrap is missing; run: apt-get install debootstrap"
cd "$(dirname "$0")/../.."
base=$PWD/build/chroot/bookworm-clean
if [ ! -e "$base/.ready" ]; then
  echo "test-clean: making $base: a minute or two, once"
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
  # unshare passes no signal on; with it dies all that is inside.
  if [ -n "$inside" ]; then kill -9 "$inside" 2>/dev/null || true; wait "$inside" 2>/dev/null || true; fi
  # Nothing is mounted out here; if it were, removing would reach through it.
  if grep -q " $root/" /proc/mounts; then fail "mounts are left in $root; umount them, then remove it"; fi
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
  # The second time it is set up already.
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
