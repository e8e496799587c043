"""Writes the hashes of all files of each pinned version: `python -m tools.constraint_hashes`.

It asks the package indexes that pip is configured with, through pip itself, for the pages of the pinned packages, and
downloads nothing. The list has the files for every platform and Python, so that set-up works elsewhere too. It also has
the files in pip's local directories (find-links). Run it after each change of a version, and read the difference: a
version that stays the same must not get another hash for a file that it had.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version
from pip._internal.commands.download import DownloadCommand
from pip._internal.index.collector import parse_links
from pip._internal.models.link import Link

ROOT = Path(__file__).resolve().parents[1]
FILES = (ROOT / "constraints.txt", ROOT / ".ci" / "cuda129.txt", ROOT / ".ci" / "torch-cuda.txt")
PINNED = re.compile(r"([A-Za-z0-9._-]+)==(\S+)")


def version_of(file_name: str, project: str) -> Version | None:
    """The version of a file without its local part, which names a build of it (`+cpu`); None if it is no such file."""
    try:
        parsed = parse_wheel_filename(file_name) if file_name.endswith(".whl") else parse_sdist_filename(file_name)
    except ValueError:
        return None
    return Version(parsed[1].public) if canonicalize_name(parsed[0]) == canonicalize_name(project) else None


class Indexes:
    """The indexes and directories in which pip looks."""

    def __init__(self) -> None:
        command = DownloadCommand("download", "")
        options, _ = command.parse_args([])
        with command.main_context():
            finder = command._build_package_finder(options, command.get_default_session(options))
        self._collector = finder._link_collector
        self._scope = self._collector.search_scope

    def hashes(self, project: str, version: str) -> set[str]:
        links = [*self._listed(project), *self._local()]
        return {
            found
            for link in links
            if version_of(link.filename, project) == Version(version) and (found := sha256_of(link)) is not None
        }

    def _listed(self, project: str) -> Iterator[Link]:
        for url in self._scope.get_index_urls_locations(project):
            page = self._collector.fetch_response(Link(url))
            if page is not None:
                yield from parse_links(page)

    def _local(self) -> Iterable[Link]:
        folders = [Path(place) for place in self._scope.find_links if Path(place).is_dir()]
        return [Link(file.as_uri()) for folder in folders for file in folder.iterdir() if file.is_file()]


def sha256_of(link: Link) -> str | None:
    if link.hash_name == "sha256":
        return link.hash
    return hashlib.sha256(Path(link.file_path).read_bytes()).hexdigest() if link.is_file else None


def with_hashes(text: str, indexes: Indexes) -> Iterator[str]:
    for line in text.splitlines():
        pinned = PINNED.match(line)
        if pinned is None:
            if not line.lstrip().startswith("--hash="):
                yield line
            continue
        hashes = sorted(indexes.hashes(*pinned.groups()))
        if not hashes:
            sys.exit(f"constraint_hashes: {pinned[0]}: no index has it; check pip's configuration")
        yield " \\\n".join([pinned[0], *(f"    --hash=sha256:{one}" for one in hashes)])


def main() -> None:
    indexes = Indexes()
    for path in FILES:
        path.write_text("".join(f"{line}\n" for line in with_hashes(path.read_text(), indexes)))


if __name__ == "__main__":
    main()
