#!/usr/bin/env python3
"""Draws the recorded outage: the bytes of a download over time, through a cut and two upgrades.

    scripts/outage_picture.py            write docs/pictures/outage-{light,dark}.svg
    scripts/outage_picture.py --check    exit 1 if they are not what the recording says

Reads examples/outage/recording.txt and nothing else. README shows the pictures.
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDING = ROOT / "examples" / "outage" / "recording.txt"
PICTURES = ROOT / "docs" / "pictures"

WIDTH, HEIGHT = 860, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 44, 40  # margins around the plot
SECONDS_STEP, MEGABYTES_STEP = 10, 200  # between marks of the axes

# Text, faint lines, the curve and what it covers, the outage.
COLORS = {
    "light": ("#24292f", "#d0d7de", "#0969da", "#cf222e"),
    "dark": ("#e6edf3", "#3d444d", "#4493f8", "#f85149"),
}
SHADE = 'fill-opacity="0.16"'

# What the recording calls an event, and what the picture calls it.
CUT, BACK = "the link is cut", "the link is back"
UPGRADES = {
    "keypadd reload --binary, far": ("server", "end", -6),
    "keypadd reload --binary, near": ("client", "start", 6),
}
DONE, EQUAL = "curl is done", "the copy is equal to the original"


class Recording:
    """The points of the curve, and when each event happened, in seconds."""

    def __init__(self, text):
        lines = [match.groups() for match in re.finditer(r"^ *(\d+) s  (.*)$", text, re.MULTILINE)]
        self.at = {what: int(second) for second, what in reversed(lines)}
        progress = re.compile(r"(\d+) MB of (\d+)")
        found = [(int(second), progress.fullmatch(what)) for second, what in lines]
        self.points = [(second, int(match[1])) for second, match in found if match]
        self.total = next(int(match[2]) for _, match in found if match)
        missing = {CUT, BACK, DONE, EQUAL, *UPGRADES} - self.at.keys()
        if missing:
            sys.exit(f"{RECORDING}: nothing says {sorted(missing)}")
        self.points.append((self.at[DONE], self.total))


def draw(recording, colors):
    """The picture as SVG, in these colors."""
    text, faint, curve, outage = colors
    end = recording.at[EQUAL] + 1

    def x(second):
        return round(LEFT + (WIDTH - LEFT - RIGHT) * second / end, 1)

    def y(megabytes):
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * megabytes / recording.total, 1)

    def label(at_x, at_y, words, more=""):
        return f'<text x="{at_x}" y="{at_y}"{more}>{words}</text>'

    middle = ' text-anchor="middle"'
    base = y(0)
    parts = []
    for megabytes in range(0, recording.total + 1, MEGABYTES_STEP):
        parts.append(f'<path d="M{LEFT} {y(megabytes)}H{WIDTH - RIGHT}" stroke="{faint}"/>')
        parts.append(label(LEFT - 8, y(megabytes) + 4, f"{megabytes} MB", ' text-anchor="end"'))
    for second in range(0, end, SECONDS_STEP):
        parts.append(label(x(second), base + 20, f"{second} s", middle))

    cut, back = recording.at[CUT], recording.at[BACK]
    parts.append(
        f'<rect x="{x(cut)}" y="{TOP}" width="{round(x(back) - x(cut), 1)}" '
        f'height="{HEIGHT - TOP - BOTTOM}" fill="{outage}" {SHADE}/>'
    )
    parts.append(label(x((cut + back) / 2), TOP + 22, f"no link for {back - cut} s", middle))
    line = " ".join(f"{x(second)},{y(megabytes)}" for second, megabytes in recording.points)
    first, last = recording.points[0][0], recording.points[-1][0]
    parts.append(f'<path d="M{x(first)} {base}L{line}L{x(last)} {base}Z" fill="{curve}" {SHADE}/>')
    parts.append(
        f'<polyline points="{line}" fill="none" stroke="{curve}" stroke-width="2.5" '
        'stroke-linejoin="round"/>'
    )
    parts.append(f'<circle cx="{x(last)}" cy="{y(recording.total)}" r="4.5" fill="{curve}"/>')
    parts.append(label(x(last) + 5, TOP - 10, "every byte is right", ' text-anchor="end"'))
    for what, (host, anchor, gap) in UPGRADES.items():
        at = x(recording.at[what])
        parts.append(f'<path d="M{at} {TOP}V{base}" stroke="{text}" stroke-dasharray="3 4"/>')
        for words, above in ((host, 28), ("upgraded", 12)):
            parts.append(label(at + gap, base - above, words, f' text-anchor="{anchor}"'))

    title = (
        f"A download of {recording.total} MB through keypadd: no link for {back - cut} seconds, then "
        "both daemons are upgraded. It stays one TCP connection, and every byte is right."
    )
    heading = f"One curl, one TCP connection, {recording.total} MB through keypadd"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="13" fill="{text}">',
            f"<title>{title}</title>",
            label(LEFT, 24, heading, ' font-size="16" font-weight="600"'),
            *parts,
            "</svg>",
            "",
        ]
    )


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = arguments.parse_args()
    recording = Recording(RECORDING.read_text())
    for name, colors in COLORS.items():
        path, picture = PICTURES / f"outage-{name}.svg", draw(recording, colors)
        if not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(picture)
        elif not path.exists() or path.read_text() != picture:
            sys.exit(f"{path.relative_to(ROOT)} is not what the recording says: run {__file__}")


if __name__ == "__main__":
    main()
