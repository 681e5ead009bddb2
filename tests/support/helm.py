"""`helm lint --strict CHART -f VALUES` and `helm template RELEASE CHART -f VALUES` by Helm's library (PyPI: helm-python-sdk).
The values are JSON."""

import json
import sys

from helm_python import Chart, lint

if len(sys.argv) == 1:
    print("helm_python 0.0")
    sys.exit()
verb, option, chart, _, values = sys.argv[1:]
with open(values) as file:
    values = json.load(file)
if verb == "lint":
    report = lint(chart, values, strict=True)
    # Those of severity 1 are advice.
    wrong = [message for message in report["messages"] if message["severity"] > 1]
    if wrong or report["errors"]:
        sys.exit(f"{wrong} {report['errors']}")
    print(report["messages"])
else:
    rendered = Chart.load(chart).render(values, name=option, namespace="default")
    print("\n---\n".join(text for path, text in sorted(rendered.items()) if path.endswith(".yaml")))
