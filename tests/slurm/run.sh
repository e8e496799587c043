#!/usr/bin/env bash
# Runs the end-to-end tests with another release of Slurm, in a root file system of another Debian suite.
# usage: run.sh RELEASE [PYTEST ARGUMENTS]          BENCH=shards in the environment runs that benchmark instead
set -euo pipefail
cd "$(dirname "$0")/../.."
release=$1; shift
root=$PWD/build/chroot/$release
tests/slurm/chroot.sh "$release" "$root"
# Slurm and MariaDB resolve the name of their host.
cp /etc/hosts "$root/etc/hosts"
# Build the plugin with the headers of that release.
rm -rf "$root/opt/spank"
mkdir -p "$root/opt/spank"
cp slurm_plugin/spank/* "$root/opt/spank/" 2>/dev/null || true
chroot "$root" make -s -C /opt/spank OUT=build
echo "test-slurm: $(chroot "$root" slurmctld -V)"
if [ -n "${BENCH:-}" ]; then
  PYTHONPATH=$PWD exec .venv/bin/python "tests/bench/$BENCH.py" --root "$root" "$@"
fi
SALUS_SLURM_ROOT=$root exec .venv/bin/python -m pytest -q tests/e2e/test_admission.py tests/e2e/test_outages.py tests/e2e/test_lifecycle.py tests/e2e/test_shards.py "$@"
