"""Makes the Debian package from the wheel: `make deb`.

    python distribution/deb.py WHEEL --man DIRECTORY --out DIRECTORY

The package carries the Python packages that Salus needs, copied from the environment that builds it, in a directory of
its own: it installs without a network, and neither changes nor needs any package of the system's Python but its
interpreter, whose minor version it names. Byte code is part of it, so that nothing is written later and removing the
package leaves nothing.
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
COMPLETED = {"salus": "cli.main", "salus-acct": "cli.acct.main"}
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/{program}",
    "zsh": "usr/share/zsh/vendor-completions/_{program}",
    "fish": "usr/share/fish/vendor_completions.d/{program}.fish",
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
    parser.add_argument("--man", type=Path, required=True, help="manual pages as make docs builds them")
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
    """The wheel and all that it needs, as byte code and source, in one directory."""
    library.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".data/" not in name:
                archive.extract(name, library)
    for distribution in needed():
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            # Programs of theirs, outside the packages' directory, are not ours to install.
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
        # Some packages carry files of later Python versions, which are never imported here.
        print("deb: some files were not compiled", file=sys.stderr)


def needed() -> list[metadata.Distribution]:
    """The distributions that Salus needs with its extras, and theirs."""
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
                below = Requirement(line)
                if below.marker is None or below.marker.evaluate({"extra": extra}):
                    waiting.append(below)
    return [distribution for name, distribution in sorted(found.items()) if name != "salus"]


def install_programs(stage: Path) -> None:
    """Launchers that see our directory and not the user's, and completion for the shells."""
    for program, module in PROGRAMS.items():
        write(stage / "usr/bin" / program, LAUNCHER.format(library=LIBRARY, module=module), 0o755)
    for program, module in COMPLETED.items():
        variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
        for shell, place in COMPLETIONS.items():
            environment = {**os.environ, variable: f"source_{shell}", "PYTHONPATH": str(ROOT)}
            command = [sys.executable, "-m", module]
            text = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
            # A file that zsh loads by itself must begin with its mark.
            write(stage / place.format(program=program), text.lstrip("\n"))


def install_files(stage: Path) -> None:
    """Configuration, units, Slurm's plugin and examples, and what monitoring reads."""
    etc = ROOT / "etc"
    write(stage / "etc/salus/salus.conf", (etc / "salus.conf").read_text())
    for unit in sorted((etc / "systemd").glob("*")):
        write(stage / "lib/systemd/system" / unit.name, unit.read_text())
    write(stage / "usr/share/salus/job_submit.lua", (ROOT / "slurm_plugin/lua/job_submit.lua").read_text())
    for name in ("grafana", "prometheus"):
        for file in sorted((etc / name).glob("*")):
            write(stage / "usr/share/salus" / name / file.name, file.read_text())
    documents = stage / "usr/share/doc/salus"
    for file in sorted((etc / "slurm").glob("*")):
        write(documents / "examples/slurm" / file.name, file.read_text())
    for file in sorted((ROOT / "examples").glob("*.*")):
        write(documents / "examples/jobs" / file.name, file.read_text())
    write(documents / "copyright", (ROOT / "LICENSE").read_text())
    write_compressed(documents / "changelog.gz", (ROOT / "CHANGELOG.md").read_text())


def install_manuals(stage: Path, manuals: Path) -> None:
    pages = [page for page in sorted(manuals.glob("*")) if page.suffix in (".1", ".5", ".8")]
    missing = {"salus.1", "salus-acct.1", "salusd.8", "salus-admitd.8", "salus.conf.5"} - {page.name for page in pages}
    if missing:
        raise SystemExit(f"deb: manual pages missing: {', '.join(sorted(missing))}: not in {manuals}; run make docs")
    for page in pages:
        write_compressed(stage / f"usr/share/man/man{page.suffix[1:]}" / f"{page.name}.gz", page.read_text())


def write_control(stage: Path, version: str) -> None:
    """Package data, scripts, and a checksum of each file."""
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


def run(*argv: str) -> str:
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def write_compressed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a time in it, two builds of one tree are equal.
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
