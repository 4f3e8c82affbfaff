#!/usr/bin/env python3
"""Prints the dashboard of grafana.json as a Prometheus console page, for use without Grafana.

    packaging/prometheus/console.py >/etc/prometheus/consoles/keypadd.html

Then http://PROMETHEUS/consoles/keypadd.html shows the last hour. Prometheus needs `--web.console.templates` and
`--web.console.libraries`, which come with it.
"""

import json
import pathlib
import re

SECONDS = 3600
# Units of Grafana; the rest are counts.
FORMATS = {"bytes": "humanize1024", "Bps": "humanize1024"}

HEAD = """\
{{ template "head" . }}
<style>
body { padding-top: 60px } .panel { display: inline-block; width: 570px; margin: 6px 12px; vertical-align: top }
</style>
"""

PANEL = """\
<div class="panel"><h6>%(title)s</h6><div id="panel%(id)s"></div></div>
<script>
new PromConsole.Graph({
  node: document.querySelector("#panel%(id)s"), width: 520, height: 170, duration: %(seconds)s, min: 0,
  renderer: "line", expr: %(expressions)s, name: [%(names)s],
  yAxisFormatter: PromConsole.NumberFormatter.%(format)s,
  yHoverFormatter: PromConsole.NumberFormatter.%(format)s,
})
</script>
"""


def name(legend):
    """A JavaScript function of a series' labels. Doubled braces would be Prometheus templates."""
    words = re.split(r"{{(\w+)}}", legend)
    words = [f'(l.{word} || "")' if place % 2 else json.dumps(word) for place, word in enumerate(words)]
    return f"l => {' + '.join(words)}"


def main():
    dashboard = json.loads(pathlib.Path(__file__).with_name("grafana.json").read_text())
    page = HEAD
    for panel in dashboard["panels"]:
        unit = panel["fieldConfig"]["defaults"]["unit"]
        expressions = [target["expr"] for target in panel["targets"]]
        expressions = [one.replace("$instance", ".*").replace("$__rate_interval", "1m") for one in expressions]
        page += PANEL % {
            "id": panel["id"],
            "title": f"{panel['title']} ({unit})" if unit not in ("none", "short") else panel["title"],
            "seconds": SECONDS,
            "expressions": json.dumps(expressions),
            "names": ", ".join(name(target["legendFormat"]) for target in panel["targets"]),
            "format": FORMATS.get(unit, "humanize"),
        }
    print(page + '{{ template "tail" }}')


if __name__ == "__main__":
    main()
