// Lists the endpoints from the OpenAPI description of the server.

import { json } from "./api.js";
import { $, element } from "./dom.js";

const TYPES = { string: "text", integer: "integer", number: "number", array: "files" };

function fields(description, schemas) {
  const rows = (description.parameters ?? []).map((parameter) => [parameter.name, parameter.in, parameter.schema, parameter.description]);
  const form = description.requestBody?.content?.["multipart/form-data"]?.schema;
  const properties = form ? (schemas[form.$ref?.split("/").pop()] ?? form).properties : {};
  for (const [name, schema] of Object.entries(properties)) rows.push([name, "form", schema, schema.description]);
  return rows.map(([name, source, schema, text]) => {
    const byDefault = schema.default === undefined ? "" : `, default ${schema.default}`;
    return element("li", {}, element("code", {}, name), ` – ${source}, ${TYPES[schema.type] ?? "value"}${byDefault}. ${text ?? ""}`);
  });
}

function example(method, path, description) {
  const posts = method === "post" && description.requestBody;
  const label = posts && path !== "/predict" ? " -F label=plum" : "";
  const images = posts ? `${label} -F images=@one.jpg -F images=@two.jpg` : "";
  const verb = method === "get" || posts ? "" : ` -X ${method.toUpperCase()}`;
  return `curl${verb}${token}${images} ${location.origin}${path}`;
}

const token = (await json("/health")).token ? " -H 'Authorization: Bearer TOKEN'" : "";
const { paths, components } = await json("/openapi.json");
for (const [path, methods] of Object.entries(paths)) {
  for (const [method, description] of Object.entries(methods)) {
    const listed = fields(description, components?.schemas ?? {});
    $("endpoints").append(element("section", { class: "panel endpoint" },
      element("h2", {}, element("code", {}, `${method.toUpperCase()} ${path}`)),
      element("p", {}, `${description.summary}.`),
      ...(listed.length ? [element("ul", {}, ...listed)] : []),
      element("pre", {}, example(method, path, description))));
  }
}
