"""Prints the manifests of a chart, rendered by Helm's library (PyPI: helm-python-sdk): CHART RELEASE VALUES_AS_JSON."""

import json
import sys

from helm_python import Chart

if len(sys.argv) == 1:
    print("helm_python 0.0")
    sys.exit()
chart, release, values = sys.argv[1:]
rendered = Chart.load(chart).render(json.loads(values), name=release, namespace="default")
print("\n---\n".join(text for path, text in sorted(rendered.items()) if path.endswith(".yaml")))
