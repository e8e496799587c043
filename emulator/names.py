"""Names and versions of the driver's and NVML's public functions, and the C tables made from them.

The committed lists (`driver_names.tsv`, `nvml_names.txt`) have only names and version numbers of a public interface, so
that a machine without a CUDA toolkit can build. If there is a toolkit, its header is read as well. The C tables are
generated from the lists.

    names.py scan-header cudaTypedefs.h     list (base name, version, variant, symbol) of a toolkit's header
    names.py scan-pynvml                    list the NVML names that nvidia-ml-py looks up
    names.py merge [cudaTypedefs.h]         the committed list, with the additional names of a toolkit's header
    names.py driver-table TSV | driver-stubs TSV | nvml-stubs
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
DRIVER_NAMES = HERE / "driver_names.tsv"
NVML_NAMES = HERE / "nvml_names.txt"

# These are in separate headers (profiler control) or have no PFN type.
EXTRA_DRIVER_ROWS = [
    ("cuProfilerInitialize", 4000, "", "cuProfilerInitialize"),
    ("cuProfilerStart", 4000, "", "cuProfilerStart"),
    ("cuProfilerStop", 4000, "", "cuProfilerStop"),
    ("cuDeviceGetP2PAtomicCapabilities", 13000, "", "cuDeviceGetP2PAtomicCapabilities"),
]

Row = tuple[str, int, str, str]


def scan_header(text: str) -> list[Row]:
    """Pair every versioned function-pointer type with its exported symbol.

    The n-th version of a base name is exported as `name`, `name_v2`, `name_v3` and so on. A per-thread variant has the
    suffix of its plain version.
    """
    plain: dict[str, set[int]] = defaultdict(set)
    variants: set[tuple[str, int, str]] = set()
    for base, version, variant in re.findall(r"\bPFN_(cu[A-Za-z0-9]+)_v(\d+)(_ptds|_ptsz)?\)", text):
        if variant:
            variants.add((base, int(version), variant[1:]))
        else:
            plain[base].add(int(version))
    symbols: dict[tuple[str, int], str] = {}
    for base, versions in plain.items():
        for index, version in enumerate(sorted(versions), start=1):
            symbols[base, version] = base if index == 1 else f"{base}_v{index}"
    rows: set[Row] = {(base, version, "", symbol) for (base, version), symbol in symbols.items()}
    for base, version, variant in variants:
        known = [v for v in sorted(plain[base]) if v <= version]
        symbol = symbols[base, known[-1]] if known else base
        rows.add((base, version, variant, f"{symbol}_{variant}"))
    rows.update(EXTRA_DRIVER_ROWS)
    return sorted(rows)


def scan_pynvml() -> list[str]:
    import pynvml  # noqa: PLC0415 - only this rare subcommand needs it

    text = Path(pynvml.__file__).read_text()
    return sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', text)))


def read_driver_rows(path: Path) -> list[Row]:
    rows = []
    for line in path.read_text().splitlines():
        base, version, variant, symbol = line.split("\t")
        rows.append((base, int(version), variant, symbol))
    return rows


def merge(header: str) -> list[Row]:
    known = read_driver_rows(DRIVER_NAMES)
    return sorted({*known, *(scan_header(Path(header).read_text()) if header else [])})


def symbols_of(rows: list[Row]) -> list[str]:
    return sorted({symbol for _, _, _, symbol in rows})


def driver_table(rows: list[Row]) -> str:
    lines = ['#include "proc_address.h"', ""]
    lines += [f"extern int {symbol}(void);" for symbol in symbols_of(rows)]
    lines += ["", "const struct driver_name driver_names[] = {"]
    lines += [f'    {{"{b}", {v}, {1 if variant else 0}, (void *){s}}},' for b, v, variant, s in sorted(rows)]
    lines += ["};", "const unsigned int driver_name_count = sizeof(driver_names) / sizeof(driver_names[0]);", ""]
    return "\n".join(lines)


def driver_stubs(rows: list[Row]) -> str:
    """Weak definitions of every name: a real one elsewhere in the library wins at link time."""
    lines = ["/* Generated: names that nothing implements answer CUDA_ERROR_NOT_SUPPORTED. */"]
    for symbol in symbols_of(rows):
        stem, _, variant = symbol.rpartition("_")
        if variant in ("ptds", "ptsz"):
            # A jump, because the argument list is not known here and must arrive unchanged.
            lines.append(f'__asm__(".text\\n.weak {symbol}\\n.type {symbol},@function\\n{symbol}: jmp {stem}@PLT\\n");')
        else:
            lines.append(f"__attribute__((weak)) int {symbol}(void) {{ return 801; }}")
    return "\n".join([*lines, ""])


def nvml_stubs() -> str:
    lines = ["/* Generated: names that nothing implements answer NVML_ERROR_NOT_SUPPORTED. */"]
    lines += [f"__attribute__((weak)) int {name}(void) {{ return 3; }}" for name in NVML_NAMES.read_text().split()]
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> int:
    match arguments:
        case ["scan-header", path]:
            sys.stdout.writelines(f"{b}\t{v}\t{x}\t{s}\n" for b, v, x, s in scan_header(Path(path).read_text()))
        case ["scan-pynvml"]:
            sys.stdout.writelines(f"{name}\n" for name in scan_pynvml())
        case ["merge", *header]:
            sys.stdout.writelines(f"{b}\t{v}\t{x}\t{s}\n" for b, v, x, s in merge("".join(header)))
        case ["driver-table", path]:
            sys.stdout.write(driver_table(read_driver_rows(Path(path))))
        case ["driver-stubs", path]:
            sys.stdout.write(driver_stubs(read_driver_rows(Path(path))))
        case ["nvml-stubs"]:
            sys.stdout.write(nvml_stubs())
        case _:
            sys.stderr.write(__doc__ or "")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
