// Shows the OpenAPI document. All of it becomes text, and none of it markup.

const METHODS = ["get", "put", "post", "delete"];

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function named(spec, schema) {
  const name = schema?.$ref?.split("/").pop();
  return name ? { name, ...spec.components.schemas[name] } : { name: "", ...schema };
}

// The kind of a value in a word or two.
function kind(spec, schema) {
  const found = named(spec, schema);
  if (found.enum) return found.enum.join(" | ");
  const choices = found.oneOf ?? found.anyOf;
  if (choices) return choices.map((one) => kind(spec, one)).join(" | ");
  const types = [found.type ?? "any"].flat().join(" | ");
  return found.items ? `list of ${kind(spec, found.items)}` : found.name || types;
}

// The members of an object, with those of the objects that are part of it.
function members(spec, schema) {
  const found = named(spec, schema);
  const own = Object.entries(found.properties ?? {}).map(([name, of]) => {
    const needed = found.required?.includes(name) ? "" : " (may be left out)";
    return [name, kind(spec, of) + needed, of.description ?? named(spec, of).description ?? ""];
  });
  return [...(found.allOf ?? []).flatMap((part) => members(spec, part)), ...own];
}

function table(rows) {
  const row = (cells) => element("tr", ...cells.map((cell) => element("td", cell)));
  return element("table", element("tbody", ...rows.map(row)));
}

function body(spec, title, content) {
  const schema = Object.values(content ?? {}).find((one) => one.schema)?.schema;
  const rows = schema ? members(spec, schema) : [];
  const kinds = Object.keys(content ?? {}).join(", ");
  return rows.length ? [element("p", `${title}: ${kinds}`), table(rows)] : [];
}

function request(spec, path, method, operation) {
  const parameters = (operation.parameters ?? []).map((parameter) => {
    const what = `${kind(spec, parameter.schema)}, in the ${parameter.in}`;
    return [parameter.name, what + (parameter.required ? "" : " (may be left out)"), parameter.description ?? ""];
  });
  const answers = Object.entries(operation.responses).sort();
  const first = answers.find(([status]) => status.startsWith("2"));
  return element(
    "details",
    element("summary", element("b", method.toUpperCase()), element("code", path), ` ${operation.summary ?? ""}`),
    ...(parameters.length ? [element("p", "Parameters"), table(parameters)] : []),
    ...body(spec, "Body", operation.requestBody?.content),
    element("p", "Answers"),
    table(answers.map(([status, answer]) => [status, answer.description])),
    ...body(spec, `Document of ${first?.[0]}`, first?.[1].content),
  );
}

async function show() {
  const place = document.getElementById("requests");
  const answer = await fetch("/v1/openapi.json").catch(() => undefined);
  if (!answer?.ok) {
    place.replaceChildren(element("p", "The document could not be fetched."));
    return;
  }
  const spec = await answer.json();
  const groups = new Map();
  for (const [path, item] of Object.entries(spec.paths)) {
    for (const method of METHODS.filter((one) => item[one])) {
      const [tag] = item[method].tags ?? [""];
      groups.set(tag, [...(groups.get(tag) ?? []), request(spec, path, method, item[method])]);
    }
  }
  place.replaceChildren(
    ...[...groups].map(([tag, all]) => element("section", element("h2", tag), ...all)),
  );
}

show();
