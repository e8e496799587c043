"""Sessions that lie about their iterations: the figures of a site stay what its devices can have done."""

from accounting.reports.report import make_report
from accounting.reports.selection import Selection
from accounting.storage.database import open_database
from accounting.viewer import OPERATOR
from tests.support.attacker import ATTACKER
from tests.support.salusd import wait_until

CONFIG = "UsageInterval=1\nLedgerInterval=100ms"


def test_false_iterations_and_a_false_iteration_time_do_not_raise_the_gain_of_a_site(salusd, rogue):
    daemon = salusd(config=CONFIG)
    bad = rogue(daemon, uid=ATTACKER)
    bad.do("run", signature="lies")
    assert bad.do("hello")["kind"] == "WELCOME"
    bad.do("want")
    bad.do("map_lane")
    # The first report could be true. Together with the iterations it is not.
    bad.do("lie_profile", iteration_ns=100_000)
    bad.do("lie_return")
    bad.do("lie_profile", iteration_ns=2**64 - 1)
    bad.process.stdin.close()
    bad.process.wait(30)
    database = open_database(f"sqlite:///{daemon.database}")

    def total():
        whole = Selection(start_utc_ns=0, end_utc_ns=2**62)
        report = make_report(database, OPERATOR, "cluster", whole, now_utc_ns=2**62)
        return report.total if report.total.iteration_count and report.total.known_count else None

    try:
        found = wait_until(total, "the usage is in the database", daemon.log_tail)
    finally:
        database.close()
    # A session of a few seconds cannot have had more iterations than microseconds.
    assert 0 < found.iteration_count < 60_000_000
    assert found.sharing_gain <= 1.0
    assert daemon.ask("ping")["ok"]
