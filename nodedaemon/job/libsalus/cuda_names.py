"""Trampolines for every function of the CUDA driver, generated from the list of its public names.

Keeps one rule: a name that nothing here wraps jumps to the real driver with its arguments untouched, so a program that
Salus does not understand runs as it would without Salus.

    cuda_names.py header | assembly | table  NAMES.tsv  SOURCE.c...
"""

import re
import sys
from pathlib import Path

Row = tuple[str, int, str, str]
_WRAPPER = re.compile(r"^(?:WRAP|WORK|LAUNCH|CAPTURE)\((cu\w+)", re.MULTILINE)

LAZY = """
    .text
    .type salus_cuda_lazy,@function
salus_cuda_lazy:
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %r8
    pushq %r9
    pushq %rax
    subq $8, %rsp
    call cuda_resolve
    addq $8, %rsp
    popq %rax
    popq %r9
    popq %r8
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    popq %r11
    leaq cuda_table(%rip), %r10
    jmpq *(%r10,%r11,8)
"""


def read_rows(path: str) -> list[Row]:
    rows = []
    for line in Path(path).read_text().splitlines():
        base, version, variant, symbol = line.split("\t")
        rows.append((base, int(version), variant, symbol))
    return rows


def header(symbols: list[str]) -> str:
    lines = ["/* Generated: the place of each function of the real driver in cuda_table. */", "enum cuda_place {"]
    lines += [f"    REAL_{symbol}," for symbol in symbols]
    return "\n".join([*lines, "    REAL_COUNT,", "};", ""])


def assembly(symbols: list[str]) -> str:
    """Each name jumps through the table; until the first call the table leads to the resolver."""
    lines = [LAZY, "    .hidden cuda_table", "    .hidden cuda_resolve"]
    for place, symbol in enumerate(symbols):
        lines += [
            f"    .weak {symbol}",
            f"    .type {symbol},@function",
            f"{symbol}: jmpq *cuda_table+{8 * place}(%rip)",
        ]
        lines += [f".Llazy{place}: pushq ${place}", "    jmp salus_cuda_lazy"]
    lines += ["    .data", "    .globl cuda_table", "    .align 8", "cuda_table:"]
    lines += [f"    .quad .Llazy{place}" for place in range(len(symbols))]
    return "\n".join([*lines, '    .section .note.GNU-stack,"",@progbits', ""])


def table(rows: list[Row], symbols: list[str], wrapped: set[str]) -> str:
    lines = ['#include "cuda_driver.h"', ""]
    lines += [f"extern int {symbol}(void);" for symbol in sorted(wrapped & set(symbols))]
    lines += ["const char *const cuda_symbols[] = {", *[f'    "{symbol}",' for symbol in symbols], "};"]
    lines += ["const struct cuda_name cuda_names[] = {"]
    for base, version, variant, symbol in sorted(rows):
        ours = f"(void *){symbol}" if symbol in wrapped else "0"
        lines.append(f'    {{"{base}", {version}, {1 if variant else 0}, {ours}}},')
    lines += ["};", "const unsigned int cuda_name_count = sizeof(cuda_names) / sizeof(cuda_names[0]);", ""]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in ("header", "assembly", "table"):
        sys.stderr.write(__doc__ or "")
        return 2
    rows = read_rows(arguments[1])
    symbols = sorted({symbol for _, _, _, symbol in rows})
    wrapped = {name for path in arguments[2:] for name in _WRAPPER.findall(Path(path).read_text())}
    # A per-thread variant has its plain form's arguments, and is wrapped with it.
    wrapped |= {symbol for symbol in symbols if re.sub(r"_pt(ds|sz)$", "", symbol) in wrapped}
    if arguments[0] == "header":
        sys.stdout.write(header(symbols))
    elif arguments[0] == "assembly":
        sys.stdout.write(assembly(symbols))
    else:
        sys.stdout.write(table(rows, symbols, wrapped))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
