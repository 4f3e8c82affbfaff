#!/usr/bin/env python3
"""Takes pictures out of recorded reports, so that pages which are read on a code host can show them.

    scripts/record_pictures.py            write docs/pictures/record-*.svg
    scripts/record_pictures.py --check    exit 1 if they are not what the reports have

A picture keeps the report's colors, light or dark as its reader's system has it.
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs" / "benchmarks"
PICTURES = ROOT / "docs" / "pictures"

# The picture's name, its report, and the heading that it has there.
TAKEN = [
    ("paths-bulk", "2026-11-28-paths", "Bulk over loss: 300 Mbit/s, 20 ms"),
    ("paths-small", "2026-11-28-paths", "Small messages beside bulk, p99: 300 Mbit/s, 20 ms"),
    ("files-time", "2026-11-22-files", "Median time of a file by number of clients"),
]

# Where the report's style goes on to what is around pictures.
STYLE_ENDS = "* { box-sizing"


def picture(report, heading):
    """One picture of a report as a file of its own."""
    style = re.search(r"<style>(.*?)</style>", report, re.DOTALL)[1]
    style = style[: style.index(STYLE_ENDS)]
    after = report[report.index(f"<figcaption><h3>{heading}</h3>") :]
    svg = re.search(r"<svg.*?</svg>", after, re.DOTALL)[0]
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()
    head, rest = svg.split(">", 1)
    paper = f'<rect class="paper" width="{width}" height="{height}"/>'
    size = f' width="{width}" height="{height}"'
    # A line for each shape, so that a change shows where it is.
    return f"{head}{size}>\n<style>{style}</style>\n{paper}{rest}\n".replace("><", ">\n<")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = arguments.parse_args()
    for name, folder, heading in TAKEN:
        path = PICTURES / f"record-{name}.svg"
        taken = picture((RECORDS / folder / "report.html").read_text(), heading)
        if not options.check:
            path.write_text(taken)
        elif not path.exists() or path.read_text() != taken:
            sys.exit(f"{path.relative_to(ROOT)} is not what its report has: run {__file__}")


if __name__ == "__main__":
    main()
