#!/usr/bin/env python3
"""Queries a running Prometheus for every expression of grafana.json and lists panels without data.

    packaging/prometheus/panels.py [http://127.0.0.1:9090] [MINUTES]

Prints a line per expression: its number of series within the last MINUTES (5). Exits with 1 if a panel is
empty, for any reason: some show only past events (a reconnect) or features in use (the pool).
"""

import json
import pathlib
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

STEP_SECONDS = 5


def series(prometheus, expression, minutes):
    """The expression's series with a value in that time."""
    end = time.time()
    times = {"start": end - 60 * minutes, "end": end, "step": STEP_SECONDS}
    query = urllib.parse.urlencode({"query": expression} | times)
    try:
        with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{query}", timeout=30) as answer:
            found = json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        # For an invalid expression Prometheus says what is wrong.
        sys.exit(f"{expression}: {json.load(error)['error']}")
    except OSError as error:
        sys.exit(f"no Prometheus at {prometheus}: {error}")
    is_number = lambda point: point[1] != "NaN"
    return [one["metric"] for one in found if any(map(is_number, one["values"]))]


def main():
    arguments = sys.argv[1:]
    prometheus = arguments[0].rstrip("/") if arguments else "http://127.0.0.1:9090"
    minutes = float(arguments[1]) if len(arguments) > 1 else 5
    dashboard = json.loads(pathlib.Path(__file__).with_name("grafana.json").read_text())
    empty = []
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            # As Grafana does for all hosts, with a scrape interval of at most 15 s.
            expression = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")
            count = len(series(prometheus, expression, minutes))
            print(f"{count:4} series  {panel['title']}: {target['legendFormat']}")
            if count == 0:
                empty.append(f"{panel['title']}: {expression}")
    for one in empty:
        print(f"no data: {one}")
    sys.exit(bool(empty))


if __name__ == "__main__":
    main()
