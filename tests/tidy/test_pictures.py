"""The pictures in the tree are up to date and in use."""

from tests.tidy.rules import ROOT
from tools.pictures import PICTURES


def test_the_picture_of_the_policies_is_up_to_date():
    drawn = PICTURES["policies.svg"]()
    assert drawn == (ROOT / "docs/pictures/policies.svg").read_text(), "run make pictures"


def test_every_picture_is_in_the_tree_and_in_a_page():
    pages = "".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    pictures = {path.name for path in (ROOT / "docs/pictures").iterdir()}
    assert set(PICTURES) <= pictures
    assert [name for name in pictures if f"pictures/{name}" not in pages] == []
