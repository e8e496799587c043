"""docs/sessions.md shows the states as the core has them."""

from tests.tidy.rules import ROOT
from tools.state_diagrams import page


def test_the_page_of_states_is_what_the_tables_say():
    assert (ROOT / "docs/sessions.md").read_text() == page(), "docs/sessions.md is stale; run make man"
