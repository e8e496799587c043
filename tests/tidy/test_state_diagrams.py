"""docs/sessions.md is up to date."""

from tests.tidy.rules import ROOT
from tools.state_diagrams import page


def test_the_page_of_states_matches_the_tables_of_the_core():
    assert (ROOT / "docs/sessions.md").read_text() == page(), "docs/sessions.md is stale; run make man"
