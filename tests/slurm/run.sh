#!/usr/bin/env bash
# The end-to-end tests against another release of Slurm, in a root file system made from Debian's suite.
# usage: run.sh RELEASE [PYTEST ARGUMENTS]          with BENCH=shards in the environment: that benchmark instead
set -euo pipefail
cd "$(dirname "$0")/../.."
release=$1; shift
root=$PWD/build/chroot/$release
tests/slurm/chroot.sh "$release" "$root"
# Slurm and MariaDB look their own host up.
cp /etc/hosts "$root/etc/hosts"
# The plugin is built with the headers of its release.
rm -rf "$root/opt/spank"
mkdir -p "$root/opt/spank"
cp slurm_plugin/spank/* "$root/opt/spank/" 2>/dev/null || true
chroot "$root" make -s -C /opt/spank OUT=build
echo "test-slurm: $(chroot "$root" slurmctld -V)"
if [ -n "${BENCH:-}" ]; then
  PYTHONPATH=$PWD exec .venv/bin/python "tests/bench/$BENCH.py" --root "$root" "$@"
fi
SALUS_SLURM_ROOT=$root exec .venv/bin/python -m pytest -q tests/e2e/test_admission.py tests/e2e/test_outages.py tests/e2e/test_lifecycle.py tests/e2e/test_shards.py "$@"
