#!/usr/bin/env bash
# Installs the Debian package in a clean root file system, runs it there, removes and purges it, and checks what is left.
# usage, as root: deb.sh PACKAGE
# debootstrap creates the file system once: a minimal Debian with the package's dependencies and nothing else.
set -euo pipefail
package=$(realpath "$1")
cd "$(dirname "$0")/../.."
needs=$(dpkg-deb -f "$package" Depends | tr ',' '\n' | awk '{ print $1 }' | sort -u | paste -sd,)
base=$PWD/build/chroot/bookworm-$needs

fail() { echo "test-deb: $*" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || fail "must run as root, for debootstrap and chroot"
command -v debootstrap >/dev/null || fail "debootstrap is missing; run: apt-get install debootstrap"
if [ ! -e "$base/.ready" ]; then
  echo "test-deb: creating $base; this takes a minute or two, once"
  rm -rf "$base"
  mkdir -p "$base"
  mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | head -1)}
  debootstrap --variant=minbase --include="$needs,man-db,bash-completion" bookworm "$base" ${mirror:+"$mirror"} >"$base.log" 2>&1 \
    || fail "debootstrap failed; see $base.log"
  touch "$base/.ready"
fi
root=$(mktemp -d "$base.XXXXXX")
ending() {
  umount "$root/proc" 2>/dev/null || true
  rm -rf "$root"
}
trap ending EXIT
cp -a "$base/." "$root/"
mount -t proc proc "$root/proc"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root "$@"; }
listing() { (cd "$root" && find . -path ./proc -prune -o -path ./var/lib/dpkg -prune -o -path ./var/log -prune -o -path ./var/cache -prune -o -path ./tmp -prune -o -print | sort); }

listing >"$root.before"
cp "$package" "$root/tmp/salus.deb"
inside dpkg -i /tmp/salus.deb >"$root.log" 2>&1 || { cat "$root.log" >&2; fail "dpkg -i failed"; }
for file in /etc/salus/salus.conf /lib/systemd/system/salusd.service /lib/systemd/system/salus-admitd.service \
  /usr/lib/salus/salus_spank.so /usr/lib/salus/nodedaemon/job/libsalus/libsalus.so /usr/share/salus/job_submit.lua \
  /usr/lib/salus/slurm_plugin/hooks/prolog.py /usr/lib/salus/slurm_plugin/hooks/epilog.py \
  /usr/share/doc/salus/examples/slurm/slurm.conf.example /usr/share/man/man5/salus.conf.5.gz \
  /usr/share/bash-completion/completions/salus-acct /usr/share/zsh/vendor-completions/_salus \
  /usr/share/fish/vendor_completions.d/salus.fish; do
  [ -f "$root$file" ] || fail "$file is missing"
done
inside dpkg --verify salus || fail "files differ from the package's checksums"
inside salus --version
inside salus-acct --version
inside salus config check /etc/salus/salus.conf
inside salus simulate --workload switch --policy fifo,srtf >/dev/null
inside sh -c 'printf "ClusterName=x\nSingleHost=yes\nStorageUrl=sqlite:////var/lib/salus/salus.db\n" >/tmp/own.conf; mkdir -p /var/lib/salus'
inside salus-acct -f /tmp/own.conf db upgrade
inside salus-acct -f /tmp/own.conf report -S now-1day >/dev/null || [ $? -eq 3 ] || fail "a report from an empty database failed"
inside python3 -I -S /usr/lib/salus/slurm_plugin/hooks/prolog.py || fail "the Prolog does not run without our packages"
inside salusd --help >/dev/null
inside salus -f /tmp/own.conf doctor >"$root.log" 2>&1 || [ $? -eq 1 ] || { cat "$root.log" >&2; fail "salus doctor"; }
grep -q 'libsalus.so' "$root.log" || { cat "$root.log" >&2; fail "salus doctor does not check the libraries"; }
! grep 'libatomic' "$root.log" >&2 || fail "a library is missing that the package does not depend on"
inside salus-admitd --help >/dev/null
for page in salus salus-acct salusd salus-admitd salus.conf; do
  inside man --path "$page" >/dev/null || fail "man $page"
done
inside bash -c '. /usr/share/bash-completion/completions/salus; COMP_WORDS=(salus prof); COMP_CWORD=1; _salus_completion salus; [ "${COMPREPLY[*]}" = profiles ]' \
  || fail "bash does not complete commands"
inside dpkg -r salus >>"$root.log" 2>&1 || { cat "$root.log" >&2; fail "dpkg -r failed"; }
[ -f "$root/etc/salus/salus.conf" ] || fail "dpkg -r removed the configuration"
[ ! -e "$root/usr/lib/salus" ] || fail "dpkg -r left $(find "$root/usr/lib/salus" | head -3)"
inside dpkg -P salus >>"$root.log" 2>&1 || { cat "$root.log" >&2; fail "dpkg -P failed"; }
rm -f "$root/tmp/salus.deb" "$root/tmp/own.conf"
listing >"$root.after"
left=$(diff "$root.before" "$root.after" | grep '^>' || true)
rm -f "$root.before" "$root.after" "$root.log"
[ -z "$left" ] || fail "dpkg -P left: $left"
echo "test-deb: ok"
