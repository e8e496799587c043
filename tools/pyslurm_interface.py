"""Lists the public attributes and methods of pyslurm's classes, from its source distribution.

    python -m tools.pyslurm_interface pyslurm-25.11.2.tar.gz > tools/pyslurm_interface.json

pyslurm builds against one Slurm release only, so this tool reads the source of the newest release instead of importing
it. Get it with `pip download --no-binary :all: --no-deps pyslurm`.
"""

import json
import re
import sys
import tarfile

from slurm_plugin.slurm import pyslurm as backend

SOURCES = {
    "pyslurm/core/job/job.pyx": ("Jobs", "Job"),
    "pyslurm/core/node.pyx": ("Nodes", "Node"),
    "pyslurm/core/partition.pyx": ("Partitions", "Partition"),
}
ERRORS = "pyslurm/core/error.pyx"
VERSION = "pyslurm/version.py"


def members(text, name):
    """Public functions and properties in the body of a class."""
    found = re.search(
        rf"^(?:cdef )?class {name}\b.*?:$(.*?)(?=^(?:cdef |cpdef |def |class |@)|\Z)", text, re.MULTILINE | re.DOTALL
    )
    names = set(re.findall(r"^    def (\w+)\(", found[1], re.MULTILINE)) if found else set()
    return sorted(one for one in names if not one.startswith("_"))


def interface(files):
    """`files` maps paths in the distribution to their text."""
    classes = {name: members(files[path], name) for path, names in SOURCES.items() for name in names}
    classes["errors"] = re.findall(r"^class (\w+)\(", files[ERRORS], re.MULTILINE)
    version = re.search(r"__version__ = \"([^\"]+)\"", files[VERSION])
    return {"version": version[1] if version else "", "classes": classes}


def read_distribution(path):
    wanted = (*SOURCES, ERRORS, VERSION)
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            inside = member.name.partition("/")[2]
            if inside in wanted and member.isfile():
                found[inside] = archive.extractfile(member).read().decode()
    return found


def missing(offered):
    """Attributes that the back end uses and this interface does not have."""
    used = {
        "Job": backend.JOB_ATTRIBUTES,
        "Partition": backend.PARTITION_ATTRIBUTES,
        "Jobs": ("load",),
        "Partitions": ("load",),
        "errors": ("PyslurmError",),
    }
    return sorted(
        f"{name}.{one}" for name, wanted in used.items() for one in set(wanted) - set(offered["classes"].get(name, ()))
    )


if __name__ == "__main__":
    print(json.dumps(interface(read_distribution(sys.argv[1])), indent=1))
