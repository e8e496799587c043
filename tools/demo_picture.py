"""README's picture: the top of the report that `make demo` wrote, as a browser shows it (`make demo-picture`)."""

import subprocess
import sys
import tempfile
from pathlib import Path

#: The width of a README on a hosting site, and the height of the report down to the end of the lanes.
WIDTH, HEIGHT = 1100, 800
#: Hides all but the summary and the lanes, which a newcomer can read at a glance.
SHORT = "<style>section:not(#section-lanes), details, footer, .modebar { display: none !important }</style></head>"


def main(report, picture):
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(Path(report).read_text().replace("</head>", SHORT, 1))
        take_screenshot(page, picture)


def take_screenshot(report, picture):
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}")
    files = (f"--screenshot={Path(picture).resolve()}", Path(report).resolve().as_uri())
    subprocess.run(["chromium", *flags, *files], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main(*sys.argv[1:])
