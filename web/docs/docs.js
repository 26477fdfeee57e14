// Shows openapi.json, which is openapi.yaml as JSON: one collapsible block per operation, with a form that sends it.

// The endpoint of the examples in openapi.yaml. In telapi dev, the demo's endpoint replaces it.
const exampleEndpoint = /ep_01935f5e-7c00-7b6e-9c1a-3f6f0a1d2b4c/g;
// Where the credential is kept until the tab is closed.
const storageKey = "telapi-docs-credential";
const methods = ["get", "post", "put", "patch", "delete", "options"];
// Deeper schemas are expanded by the reader, because they can contain themselves.
const expandedDepth = 1;

const byId = (id) => document.getElementById(id);
let api;

// Creates an element. Strings become text nodes and are never parsed as HTML.
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Returns the result of an operation on the browser's storage, or undefined if the browser blocks it.
function tryStorage(operation) {
  try {
    return operation();
  } catch {
    return undefined;
  }
}

// Follows the theme that was selected in the playground; System follows the browser.
function applyTheme() {
  document.documentElement.style.colorScheme = tryStorage(() => localStorage.getItem("theme")) ?? "light dark";
}

// The object that a reference points to, or the object itself.
function resolve(object) {
  if (!object?.$ref) return object ?? {};
  const target = object.$ref.split("/").slice(1).reduce((value, key) => value[key.replaceAll("~1", "/").replaceAll("~0", "~")], api);
  return { ...resolve(target), ...Object.fromEntries(Object.entries(object).filter(([key]) => key !== "$ref")), title: object.$ref.split("/").at(-1) };
}

// The Markdown that the descriptions use: headings, lists, paragraphs, code, bold and links.
function markdown(text = "", heading = "h4") {
  return text.trim().split(/\n{2,}/).flatMap((block) => {
    if (block.startsWith("```")) return [make("pre", { tabindex: "0" }, block.replace(/^```.*\n?|\n?```$/g, ""))];
    if (/^#+ /.test(block)) return [make(heading, {}, ...inline(block.replace(/^#+ /, "")))];
    const lines = block.split("\n");
    const first = lines.findIndex((line) => /^- /.test(line));
    if (first < 0) return [make("p", {}, ...inline(lines.join(" ")))];
    const items = lines.slice(first).join("\n").split(/\n(?=- )/).map((item) => make("li", {}, ...inline(item.replace(/^- /, "").replace(/\s+/g, " "))));
    return [...(first ? [make("p", {}, ...inline(lines.slice(0, first).join(" ")))] : []), make("ul", {}, ...items)];
  });
}

function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|\[[^\]]+\]\([^)\s]+\))/).filter(Boolean).map((part) => {
    if (part.startsWith("`")) return make("code", {}, part.slice(1, -1));
    if (part.startsWith("**")) return make("strong", {}, part.slice(2, -2));
    const [, label, url] = /^\[([^\]]+)\]\(((?:https:|#|\.|\/)[^)]*)\)$/.exec(part) ?? [];
    return url ? make("a", { href: url }, label) : part;
  });
}

// A block that is filled when it is opened for the first time.
function block(attributes, summary, fill) {
  const details = make("details", attributes, make("summary", {}, ...summary));
  const show = () => {
    if (details.childElementCount === 1) details.append(make("div", { class: "body" }, ...fill()));
  };
  details.addEventListener("toggle", () => details.open && show());
  details.fill = show;
  return details;
}

// The type of a schema and its limits, in words.
function typeOf(schema) {
  const { type, format, const: constant, items, minimum, maximum, minLength, maxLength, maxItems, pattern, default: usual } = schema;
  const types = [type ?? (schema.properties ? "object" : schema.oneOf ? "one of" : schema.anyOf ? "any of" : "any")].flat().join(" or ");
  const limits = { format, "≥": minimum, "≤": maximum, "length ≥": minLength, "length ≤": maxLength, "items ≤": maxItems, pattern, default: usual === undefined ? undefined : JSON.stringify(usual) };
  const known = Object.entries(limits).flatMap(([name, value]) => (value === undefined ? [] : [`${name} ${value}`]));
  if (constant !== undefined) known.unshift(JSON.stringify(constant));
  if (schema.enum) known.unshift(schema.enum.map((value) => JSON.stringify(value)).join(", "));
  if (types === "any" && known.length) return known.join(", ");
  return [types === "array" && items ? `array of ${resolve(items).title ?? resolve(items).type ?? "values"}` : types, ...known].join(", ");
}

// The members of a schema, or its alternatives. Deeper ones are shown on request.
function schemaContent(schema, depth) {
  const { properties = {}, required = [], items, additionalProperties } = schema;
  const content = [];
  const members = Object.entries(properties).map(([name, member]) => term(name, resolve(member), required.includes(name), depth));
  if (members.length) content.push(make("dl", {}, ...members.flat()));
  for (const [index, part] of [...(schema.allOf ?? []), ...(schema.oneOf ?? []), ...(schema.anyOf ?? [])].entries()) {
    const alternative = resolve(part);
    content.push(nested(alternative.title ?? `alternative ${index + 1}: ${typeOf(alternative)}`, alternative, depth));
  }
  if (items) content.push(nested("items", resolve(items), depth));
  if (additionalProperties && typeof additionalProperties === "object") content.push(nested("other members", resolve(additionalProperties), depth));
  return content;
}

function nested(title, schema, depth) {
  const details = block({ class: "nested" }, [title], () => [...markdown(schema.description), make("p", { class: "type" }, typeOf(schema)), ...schemaContent(schema, depth + 1)]);
  if (depth < expandedDepth && !schema.title) {
    details.open = true;
    details.fill();
  }
  return details;
}

// A member or parameter: its name, type and meaning.
function term(name, schema, required, depth, place = "") {
  const more = schema.properties || schema.items || schema.oneOf || schema.anyOf || schema.allOf;
  return [
    make("dt", {}, make("code", {}, name), " ", make("span", { class: "type" }, [place, typeOf(schema)].filter(Boolean).join(", ")), ...(required ? [" ", make("span", { class: "required" }, "required")] : [])),
    make("dd", {}, ...markdown(schema.description), ...(more ? [nested(schema.title ?? "members", schema, depth + 1)] : [])),
  ];
}

// The first example of a body or a parameter, as JSON or text.
function exampleOf({ example, examples, schema } = {}) {
  const shown = example ?? (examples ? resolve(Object.values(examples)[0]).value ?? Object.values(examples)[0] : undefined) ?? resolve(schema).example ?? resolve(schema).examples?.[0];
  return shown === undefined ? "" : typeof shown === "string" ? shown : JSON.stringify(shown, null, 2);
}

function operationContent(path, method, operation, shared) {
  const parameters = [...shared, ...(operation.parameters ?? [])].map(resolve);
  const body = operation.requestBody && resolve(operation.requestBody);
  const [[mediaType, media] = []] = Object.entries(body?.content ?? {});
  const scope = operation["x-required-scope"];
  const security = operation.security ?? api.security ?? [];
  const credentials = security.map((option) => Object.keys(option).join(" and ") || "none").join(" or ");
  return [
    ...markdown(operation.description),
    make("p", { class: "type" }, [credentials && `Credential: ${credentials}`, scope && `scope ${scope}`, operation["x-rate-limit-tier"] && `rate limit tier ${operation["x-rate-limit-tier"]}`].filter(Boolean).join(", ")),
    ...(parameters.length ? [make("h3", {}, "Parameters"), make("dl", {}, ...parameters.flatMap(({ name, in: place, required, description, schema }) => term(name, { ...resolve(schema), description }, required, 1, place)))] : []),
    ...(body ? [make("h3", {}, `Body, ${mediaType}`), ...markdown(body.description), ...schemaContent(resolve(media.schema), 0)] : []),
    make("h3", {}, "Responses"),
    ...Object.entries(operation.responses ?? {}).map(([status, response]) => responseBlock(status, resolve(response))),
    tryForm(path, method, parameters, mediaType, body ? exampleOf(media) : undefined),
  ];
}

function responseBlock(status, { description, content, headers = {} }) {
  const [[type, media] = []] = Object.entries(content ?? {});
  return block({ class: "nested" }, [make("strong", {}, status), ` ${(description ?? "").trim().split("\n\n")[0].replace(/[`*]/g, "")}`], () => {
    const example = exampleOf(media);
    return [
      ...markdown(description),
      ...(Object.keys(headers).length ? [make("dl", {}, ...Object.entries(headers).flatMap(([name, header]) => term(name, { ...resolve(resolve(header).schema), description: resolve(header).description }, false, 1, "header")))] : []),
      ...(media ? [make("p", { class: "type" }, type), ...schemaContent(resolve(media.schema), 0)] : []),
      ...(example ? [make("pre", { tabindex: "0" }, example)] : []),
    ];
  });
}

// A form that sends the request, and shows it as a curl command.
function tryForm(path, method, parameters, mediaType, example) {
  const form = make("form", { class: "try" }, make("h3", {}, "Try it"));
  const inputs = parameters.map((parameter) => {
    const input = make("input", { autocomplete: "off", ...(parameter.required ? { required: "" } : {}) });
    if (parameter.in === "path") input.value = exampleOf(parameter);
    form.append(make("label", {}, `${parameter.name} (${parameter.in})`, input));
    return [parameter, input];
  });
  const text = example === undefined ? undefined : make("textarea", { spellcheck: "false" });
  if (text) {
    text.value = example;
    form.append(make("label", {}, "Body", text));
  }
  const copy = make("button", { type: "button" }, "Copy as curl");
  const result = make("div", { "aria-live": "polite" });
  form.append(make("div", { class: "row" }, make("button", { class: "primary" }, "Send"), copy), result);
  const request = () => {
    const url = new URL(path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(inputs.find(([parameter]) => parameter.name === name)[1].value)), location.origin);
    const credential = byId("credential").value.trim();
    const headers = credential ? (credential.startsWith("tk_") ? { "X-API-Key": credential } : { Authorization: `Bearer ${credential}` }) : {};
    for (const [parameter, { value }] of inputs) {
      if (parameter.in === "query" && value) url.searchParams.set(parameter.name, value);
      if (parameter.in === "header" && value) headers[parameter.name] = value;
    }
    if (text?.value) headers["Content-Type"] = mediaType;
    return { url, options: { method: method.toUpperCase(), headers, ...(text?.value ? { body: text.value } : {}) } };
  };
  copy.onclick = async () => {
    const { url, options } = request();
    const quote = (word) => `'${word.replaceAll("'", `'\\''`)}'`;
    const words = ["curl", "-X", options.method, quote(url.href), ...Object.entries(options.headers).flatMap(([name, value]) => ["-H", quote(`${name}: ${value}`)]), ...(options.body ? ["--data-raw", quote(options.body)] : [])];
    await navigator.clipboard.writeText(words.join(" ")).then(() => (copy.textContent = "Copied"), () => result.replaceChildren(make("pre", { tabindex: "0" }, words.join(" "))));
  };
  form.onsubmit = async (event) => {
    event.preventDefault();
    const { url, options } = request();
    try {
      const response = await fetch(url, options);
      const received = await response.text();
      let shown = received;
      try {
        shown = JSON.stringify(JSON.parse(received), null, 2);
      } catch {
        // It is not JSON.
      }
      result.replaceChildren(make("p", {}, make("strong", {}, `${response.status} ${response.statusText}`)), make("pre", { tabindex: "0" }, shown || "empty"));
    } catch (error) {
      result.replaceChildren(make("p", {}, `The request failed: ${error}`));
    }
  };
  return form;
}

function show() {
  const operations = Object.entries(api.paths).flatMap(([path, item]) =>
    methods.filter((method) => item[method]).map((method) => {
      const operation = item[method];
      const title = [make("span", { class: "method", "data-method": method }, method.toUpperCase()), make("code", {}, path), make("span", { class: "summary" }, operation.summary ?? "")];
      const details = block({ class: "operation", id: operation.operationId }, title, () => operationContent(path, method, operation, item.parameters ?? []));
      return { details, tag: operation.tags?.[0], words: [method, path, operation.operationId, operation.summary, operation.description].join(" ").toLowerCase() };
    }));
  const sections = api.tags.map(({ name, description }) => make("section", {}, make("h2", {}, name), ...markdown(description), ...operations.filter(({ tag }) => tag === name).map(({ details }) => details)));
  const schemas = Object.entries(api.components.schemas).map(([name]) => {
    const schema = resolve({ $ref: `#/components/schemas/${name}` });
    return block({ class: "schema", id: `schema-${name}` }, [make("code", {}, name)], () => [...markdown(schema.description), make("p", { class: "type" }, typeOf(schema)), ...schemaContent(schema, 0)]);
  });
  byId("reference").replaceChildren(
    block({ class: "about" }, ["About this API"], () => markdown(api.info.description, "h2")),
    ...sections,
    make("section", {}, make("h2", {}, "Schemas"), ...schemas),
  );
  byId("search").oninput = () => {
    const text = byId("search").value.trim().toLowerCase();
    for (const { details, words } of operations) details.hidden = !words.includes(text);
    for (const schema of schemas) schema.hidden = !schema.id.toLowerCase().includes(text);
    for (const section of document.querySelectorAll("section")) section.hidden = ![...section.querySelectorAll(":scope > details")].some(({ hidden }) => !hidden);
  };
  const openTarget = () => {
    const target = location.hash && byId(decodeURIComponent(location.hash.slice(1)));
    if (target?.localName !== "details") return;
    target.open = true;
    target.scrollIntoView();
  };
  for (const { details } of operations) details.addEventListener("toggle", () => details.open && history.replaceState(null, "", `#${details.id}`));
  addEventListener("hashchange", openTarget);
  openTarget();
}

async function start() {
  const config = await fetch("../playground/config.json").then((response) => (response.ok ? response.json() : {})).catch(() => ({}));
  const endpoint = config.endpoints?.[0]?.id;
  const text = await (await fetch("openapi.json")).text();
  api = JSON.parse(endpoint ? text.replace(exampleEndpoint, endpoint) : text);
  const credential = byId("credential");
  credential.value = tryStorage(() => sessionStorage.getItem(storageKey)) ?? config.apiKey ?? "";
  credential.onchange = () => tryStorage(() => sessionStorage.setItem(storageKey, credential.value));
  byId("options").onsubmit = (event) => event.preventDefault();
  show();
}

applyTheme();
addEventListener("storage", applyTheme);
start();
