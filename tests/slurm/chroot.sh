#!/usr/bin/env bash
# Creates a root file system with another Debian suite and its Slurm, for `make test-slurm RELEASE=...`. It is reused.
# usage: chroot.sh RELEASE DIRECTORY          RELEASE: trixie (Slurm 24.11) or forky (26.05)
set -euo pipefail
release=$1 root=$2
packages=slurmctld,slurmd,slurmdbd,slurm-client,slurm-wlm-basic-plugins,slurm-wlm-mysql-plugin,munge,mariadb-server
packages+=,lua-socket,lua-cjson,python3-minimal,gcc,libc6-dev,libslurm-dev,make

fail() { echo "test-slurm: $*" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || fail "must run as root, for debootstrap and chroot"
[ -e "$root/.ready" ] && exit 0
command -v debootstrap >/dev/null || fail "debootstrap is missing; run: apt-get install debootstrap"
# A suite newer than those that debootstrap knows is set up like sid.
script=/usr/share/debootstrap/scripts/$release
[ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
# The mirror that this machine uses.
mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | head -1)}
echo "test-slurm: creating $root ($release); this takes a few minutes, once"
rm -rf "$root"
mkdir -p "$root"
debootstrap --variant=minbase "$release" "$root" ${mirror:+"$mirror"} "$script" >"$root.log" 2>&1 \
  || fail "debootstrap failed; see $root.log"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
[ -d /etc/apt/apt.conf.d ] && cp -n /etc/apt/apt.conf.d/* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
mount -t proc proc "$root/proc"
trap 'umount "$root/proc"' EXIT
chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get update -qq >>"$root.log" 2>&1 || fail "apt-get update failed; see $root.log"
chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ${packages//,/ } >>"$root.log" 2>&1 \
  || fail "apt-get install failed; see $root.log"
touch "$root/.ready"
