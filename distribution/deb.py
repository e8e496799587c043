"""Builds the Debian package from the wheel: `make deb`.

    python distribution/deb.py WHEEL --man DIRECTORY --out DIRECTORY

The package contains the Python packages that Salus needs, copied from the build environment to a directory of its own.
It installs without a network. It uses only the interpreter of the system's Python and depends on its minor version.
It contains byte code, so nothing is written later, and removing the package leaves nothing behind.
"""

import argparse
import compileall
import gzip
import hashlib
import os
import py_compile
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LIBRARY = Path("usr/lib/salus")
EXTRAS = ("cuda", "report", "postgresql", "mariadb")
PROGRAMS = {
    "salus": "cli.main",
    "salus-acct": "cli.acct.main",
    "salusd": "nodedaemon.__main__",
    "salus-admitd": "slurm_plugin.admitd.server",
}
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/{program}",
    "zsh": "usr/share/zsh/vendor-completions/_{program}",
    "fish": "usr/share/fish/vendor_completions.d/{program}.fish",
}
DOCUMENTS = "usr/share/doc/salus"
# Files of the tree, and their folders in the package.
FOLDERS = {
    "etc/salus.conf": "etc/salus",
    "etc/systemd/*": "lib/systemd/system",
    "etc/grafana/*": "usr/share/salus/grafana",
    "etc/prometheus/*": "usr/share/salus/prometheus",
    "etc/slurm/*": f"{DOCUMENTS}/examples/slurm",
    "examples/*.*": f"{DOCUMENTS}/examples/jobs",
    "slurm_plugin/lua/job_submit.lua": "usr/share/salus",
}
LAUNCHER = """\
#!/usr/bin/python3 -IB
import sys

sys.path.insert(0, "/{library}")
from {module} import main

sys.exit(main())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--man", type=Path, required=True, help="directory of the manual pages that make docs builds")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    stage = options.out / "root"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    version = options.wheel.name.split("-")[1]
    install_packages(stage / LIBRARY, options.wheel)
    install_programs(stage)
    install_files(stage)
    install_manuals(stage, options.man)
    write_control(stage, version)
    package = options.out / f"salus_{version}_{architecture()}.deb"
    run("dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build", str(stage), str(package))
    print(package)


def install_packages(library: Path, wheel: Path) -> None:
    """Install the wheel and its dependencies, as source and byte code, in one directory."""
    library.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".data/" not in name:
                archive.extract(name, library)
    for distribution in needed():
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            # Skip programs of dependencies, which are outside the directory of the packages.
            if ".." in file.parts or "__pycache__" in file.parts or not source.is_file():
                continue
            target = library / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    for record in library.glob("*.dist-info/RECORD"):
        record.unlink()
    spank = library / "slurm_plugin" / "spank" / "salus_spank.so"
    spank.rename(library / spank.name)
    is_compiled = compileall.compile_dir(
        library, quiet=2, stripdir=str(library.parents[2]), workers=os.cpu_count() or 1,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )  # fmt: skip
    if not is_compiled:
        # Some packages contain files for later Python versions, which are never imported here.
        print("deb: some files were not compiled", file=sys.stderr)


def needed() -> list[metadata.Distribution]:
    """All dependencies of Salus and its extras, direct and indirect."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(Requirement(f"salus[{','.join(EXTRAS)}]"))]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        for extra in (*requirement.extras, ""):
            if (requirement.name, extra) in seen:
                continue
            seen.add((requirement.name, extra))
            distribution = metadata.distribution(requirement.name)
            found[requirement.name.lower().replace("_", "-")] = distribution
            for line in distribution.requires or ():
                dependency = Requirement(line)
                if dependency.marker is None or dependency.marker.evaluate({"extra": extra}):
                    waiting.append(dependency)
    return [distribution for name, distribution in sorted(found.items()) if name != "salus"]


def install_programs(stage: Path) -> None:
    """Install launchers, which ignore the user's Python packages, and shell completions for our commands."""
    for program, module in PROGRAMS.items():
        write(stage / "usr/bin" / program, LAUNCHER.format(library=LIBRARY, module=module), 0o755)
        if not module.startswith("cli."):
            continue
        variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
        for shell, place in COMPLETIONS.items():
            text = run(sys.executable, "-m", module, PYTHONPATH=str(ROOT), **{variable: f"source_{shell}"})
            # zsh autoloads a completion only if #compdef is its first line.
            write(stage / place.format(program=program), text.lstrip("\n"))


def install_files(stage: Path) -> None:
    """Install the configuration, systemd units, job_submit.lua, monitoring files, examples and documents."""
    for pattern, folder in FOLDERS.items():
        for file in ROOT.glob(pattern):
            write(stage / folder / file.name, file.read_text())
    write(stage / DOCUMENTS / "copyright", (ROOT / "LICENSE").read_text())
    write_compressed(stage / DOCUMENTS / "changelog.gz", (ROOT / "CHANGELOG.md").read_text())


def install_manuals(stage: Path, manuals: Path) -> None:
    pages = [page for page in sorted(manuals.glob("*")) if page.suffix in (".1", ".5", ".8")]
    missing = {"salus.1", "salus-acct.1", "salusd.8", "salus-admitd.8", "salus.conf.5"} - {page.name for page in pages}
    if missing:
        raise SystemExit(f"deb: manual pages missing: {', '.join(sorted(missing))}: not in {manuals}; run make docs")
    for page in pages:
        write_compressed(stage / f"usr/share/man/man{page.suffix[1:]}" / f"{page.name}.gz", page.read_text())


def write_control(stage: Path, version: str) -> None:
    """Write the control file, the maintainer scripts and the checksums."""
    control = stage / "DEBIAN"
    files = sorted(path for path in stage.rglob("*") if path.is_file())
    size_kib = sum(-(-path.stat().st_size // 1024) for path in files)
    minor = sys.version_info.minor
    template = (HERE / "debian" / "control").read_text()
    pythons = {"python": f"3.{minor}", "next_python": f"3.{minor + 1}"}
    facts = {"version": version, "architecture": architecture(), "size_kib": size_kib, **pythons}
    write(control / "control", template.format(**facts))
    write(control / "conffiles", "/etc/salus/salus.conf\n")
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(stage)}\n" for path in files]  # noqa: S324
    write(control / "md5sums", "".join(sums))
    for script in ("postinst", "prerm", "postrm"):
        write(control / script, (HERE / "debian" / script).read_text(), 0o755)
    for path in stage.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
        elif not path.stat().st_mode & 0o100:
            path.chmod(0o644)


def architecture() -> str:
    return run("dpkg", "--print-architecture").strip()


def run(*argv: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    return subprocess.run(argv, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def write_compressed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a time stamp, two builds of the same tree are identical.
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
