"""The account tree: read from sacctmgr, used to group sums, and drawn."""

from hypothesis import given
from hypothesis import strategies as st

from accounting.ingest.accounts import children_of, lineage, read_associations
from cli.acct.report_text import stems

NAMES = st.sampled_from("abcdefg")


def test_associations_of_accounts_name_their_parents() -> None:
    accounts = "alpha|root||\nalpha|root||root\nalpha|science|root|\nalpha|vision|science|\n"
    printed = accounts + "alpha|vision||ada\nodd line\n||x|\n"
    found = {(r.cluster, r.account): r.parent for r in read_associations(printed, now_utc_ns=5)}
    assert found == {("alpha", "root"): "", ("alpha", "science"): "root", ("alpha", "vision"): "science"}


@given(st.sets(NAMES | st.just("")), st.dictionaries(NAMES, NAMES))
def test_each_account_with_sums_is_in_the_tree_once_even_with_cycles(
    accounts: set[str], parents: dict[str, str]
) -> None:
    children = children_of(accounts, parents)
    seen: list[str] = []

    def walk(above: str | None) -> None:
        for name in children.get(above, ()):
            seen.append(name)
            walk(name)

    walk(None)
    assert len(seen) == len(set(seen))
    assert accounts <= set(seen)
    for account in accounts:
        assert lineage(account, parents)[-1] == account


def test_a_tree_is_drawn_with_its_continuing_branches() -> None:
    assert stems([0, 1, 2, 2, 1, 2, 0, 1]) == ["", " ├ ", " │ ├ ", " │ └ ", " └ ", "   └ ", "", " └ "]
    assert stems([]) == []
