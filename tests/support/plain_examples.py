"""Runs examples one after the other in one plain process, and prints their outputs as JSON for comparison.

usage: python plain_examples.py '[["examples/cnn.py", "--seed", "0"], ...]'
"""

import contextlib
import io
import json
import runpy
import sys


def main() -> None:
    printed = []
    for command in json.loads(sys.argv[1]):
        sys.argv = command
        with contextlib.redirect_stdout(io.StringIO()) as text:
            runpy.run_path(command[0], run_name="__main__")
        printed.append(text.getvalue())
    print(json.dumps(printed))


if __name__ == "__main__":
    main()
