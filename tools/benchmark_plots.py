"""The plots of docs/benchmarks.md, drawn from the recorded files: `make numbers` writes them, tidy compares them.

Plain SVG without a library: there are only two kinds of picture, and the files are the same on every machine.
"""

import math
from html import escape

from tools.cited_numbers import FOLDER, ROOT, UnrecordedError, look_up

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 40, 52
INK, FAINT = "#1f2933", "#d5dbe1"
COLOURS = ("#8d99a6", "#5b6873", "#c08a3e", "#9ec3de", "#1f6fb2", "#3f9a6d", "#b2558f")
CONFIGURATIONS = ("gpu", "gpu-shortest", "shard", "fifo", "srtf", "fair", "pack")


class Axes:
    """A frame with a scale on both axes. Converts values into coordinates."""

    def __init__(self, title, x_title, y_title, x_max, y_max):
        self.x_max, self.y_max = x_max, y_max
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
            f'<g font-family="sans-serif" font-size="13" fill="{INK}">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            text(LEFT, 22, title, anchor="start", more='font-size="15" font-weight="bold"'),
            text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_title),
            f'<g transform="translate(16 {HEIGHT / 2:.1f}) rotate(-90)">{text(0, 0, y_title)}</g>',
        ]
        for value in ticks(y_max):
            y = self.y(value)
            self.parts.append(line(LEFT, y, WIDTH - RIGHT, y, FAINT))
            self.parts.append(text(LEFT - 8, y + 4, f"{value:g}", anchor="end"))

    def x(self, value):
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.x_max

    def y(self, value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self.y_max

    def x_ticks(self):
        for value in ticks(self.x_max):
            self.parts.append(text(self.x(value), HEIGHT - BOTTOM + 18, f"{value:g}"))

    def done(self):
        return "\n".join([*self.parts, "</g>", "</svg>", ""])


def ticks(top):
    """About five round numbers up to `top`."""
    raw = top / 5
    size = 10 ** math.floor(math.log10(raw))
    pace = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    return [round(number * pace, 6) for number in range(int(top / pace) + 1)]


def text(x, y, words, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(words)}</text>'


def line(x1, y1, x2, y2, colour, width=1.0):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def bars(title, y_title, groups):
    """`groups`: name -> list of (value, low, high, colour, label)."""
    top = max(high for bundle in groups.values() for _, _, high, _, _ in bundle) * 1.12
    axes = Axes(title, "", y_title, len(groups), top)
    for place, (name, bundle) in enumerate(groups.items()):
        width = 0.7 / len(bundle)
        for number, (value, low, high, colour, label) in enumerate(bundle):
            left, right = axes.x(place + 0.15 + number * width), axes.x(place + 0.15 + (number + 0.92) * width)
            axes.parts.append(
                f'<rect x="{left:.1f}" y="{axes.y(value):.1f}" width="{right - left:.1f}" '
                f'height="{axes.y(0) - axes.y(value):.1f}" fill="{colour}"/>'
            )
            middle = (left + right) / 2
            if high > low:
                axes.parts.append(line(middle, axes.y(low), middle, axes.y(high), INK, 1.5))
            axes.parts.append(text(middle, axes.y(high) - 5, label, more='font-size="11"'))
        axes.parts.append(text(axes.x(place + 0.5), HEIGHT - BOTTOM + 18, name))
    return axes


def steps(title, x_title, y_title, curves):
    """`curves`: name -> (sorted values, colour). Each curve rises by one at each of its values."""
    axes = Axes(title, x_title, y_title, max(values[-1] for values, _ in curves.values()) * 1.02,
                max(len(values) for values, _ in curves.values()))  # fmt: skip
    axes.x_ticks()
    for number, (name, (values, colour)) in enumerate(curves.items()):
        points = [(axes.x(0), axes.y(0))]
        for count, value in enumerate(values, start=1):
            points += [(axes.x(value), axes.y(count - 1)), (axes.x(value), axes.y(count))]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        axes.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        y = HEIGHT - BOTTOM - 16 - 18 * (len(curves) - 1 - number)
        axes.parts.append(line(WIDTH - RIGHT - 150, y - 4, WIDTH - RIGHT - 125, y - 4, colour, 3))
        axes.parts.append(text(WIDTH - RIGHT - 118, y, name, anchor="start"))
    return axes


def sidebyside_average():
    middle, low, high = (look_up(f"sidebyside.{word}.configurations") for word in ("median", "min", "max"))
    groups = {
        name: [(middle[name]["average_s"], low[name]["average_s"], high[name]["average_s"], colour,
                f"{middle[name]['average_s']:.1f}")]
        for name, colour in zip(CONFIGURATIONS, COLOURS, strict=True)
        if name in middle
    }  # fmt: skip
    return bars("Average completion time; line: smallest to largest run", "seconds from submit to end", groups).done()


def sidebyside_ends():
    found = look_up("sidebyside.last.configurations")
    curves = {
        name: (sorted(found[name]["completion_s"]), colour)
        for name, colour in zip(CONFIGURATIONS, COLOURS, strict=True)
        if name in ("gpu", "gpu-shortest", "shard", "srtf", "fair") and name in found
    }
    return steps("Completed jobs by completion time (last run)", "seconds from submit to end", "jobs", curves).done()


def sidebyside_simulated():
    found = look_up("sidebyside.median.prediction")
    groups = {}
    for name, figures in found.items():
        values = [(figures["real_s"], COLOURS[4]), (figures["history"]["average_s"], COLOURS[2]),
                  (figures["replay"]["average_s"], COLOURS[3])]  # fmt: skip
        groups[name] = [(value, value, value, colour, f"{value:.0f}") for value, colour in values]
    title = "Average completion: real (blue), from history (brown), replayed (light blue)"
    return bars(title, "seconds from submit to end", groups).done()


def sweep_ends():
    found = look_up("sweep.last.configurations")
    names = {"gpu": COLOURS[0], "empty": COLOURS[4], "known": COLOURS[5]}
    curves = {name: (found[name]["completion_s"], colour) for name, colour in names.items()}
    return steps("Tasks of the sweep that have ended", "seconds from submit", "tasks", curves).done()


def inference_latency():
    found = look_up("inference.last")
    groups = {}
    for key, name in (
        ("alone_plain", "alone, plain"),
        ("alone", "alone, by Salus"),
        ("together", "all on one device"),
    ):
        figures = found[key]
        groups[name] = [(figures[word], figures[word], figures[word], colour, f"{word[:3]} {figures[word]:.0f} ms")
                        for word, colour in (("p50_ms", COLOURS[3]), ("p99_ms", COLOURS[4]))]  # fmt: skip
    return bars("Latency of requests to the model servers", "milliseconds", groups).done()


PLOTS = {
    "sidebyside-average.svg": sidebyside_average,
    "sidebyside-ends.svg": sidebyside_ends,
    "sidebyside-simulated.svg": sidebyside_simulated,
    "sweep-ends.svg": sweep_ends,
    "inference-latency.svg": inference_latency,
}


def drawn():
    """Every plot by file name. A plot without a recorded benchmark says so."""
    found = {}
    for name, draw in PLOTS.items():
        try:
            found[name] = draw()
        except UnrecordedError:
            words = text(20, 40, f"not recorded: make record BENCH={name.partition('-')[0]}", anchor="start")
            found[name] = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 80">{words}</svg>\n'
    return found


def main():
    for name, content in drawn().items():
        (ROOT / FOLDER / name).write_text(content)


if __name__ == "__main__":
    main()
