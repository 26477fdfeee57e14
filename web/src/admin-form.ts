import type { TelapiError } from "@telapi/sdk";
import type { Issue } from "./api.js";
import { byId, make } from "./dom.js";
import { issueList } from "./lint.js";

/** A field of a form. Its name is that of the member in the request. */
export interface Field {
  name: string;
  label: string;
  /** choices is a list of checkboxes, lines a list with one value per line; an empty number is null, an empty time is left out. */
  type: "text" | "number" | "checkbox" | "choices" | "lines" | "time";
  value?: unknown;
  options?: readonly string[]; // of choices
  hint?: string;
  required?: boolean;
}

/** A form in a dialog: to create or change something, or without fields to confirm an action. */
export interface Form {
  title: string;
  text?: string;
  fields?: Field[];
  submit: string; // label of the button
  danger?: boolean;
  /** Sends the values. If it returns an element, the dialog shows it until the user closes it. */
  send(values: Record<string, unknown>): Promise<HTMLElement | void>;
}

const dialog = () => byId<HTMLDialogElement>("form-dialog");

/** Shows a form. Calls done after it was sent and closed. */
export function openForm({ title, text, fields = [], submit, danger, send }: Form, done: () => void): void {
  const issues = make("div", { role: "alert" });
  const inputs = fields.map((field) => ({ field, element: fieldElement(field) }));
  const confirm = make("button", { class: danger ? "danger" : "primary" }, submit);
  const cancel = make("button", { type: "button" }, "Cancel");
  cancel.onclick = () => close();
  const form = make("form", {}, make("h3", { id: "form-dialog-title" }, title), ...(text ? [make("p", {}, text)] : []), issues, ...inputs.map(({ element }) => element), make("div", { class: "row" }, confirm, cancel));
  let [sent, closed] = [false, false];
  const finish = () => {
    if (closed) return;
    closed = true;
    dialog().replaceChildren(); // it may show a secret
    if (sent) done();
  };
  const close = () => {
    dialog().close();
    finish(); // the event comes with the next frame, when another form may be open
  };
  form.onsubmit = async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    try {
      const result = await send(Object.fromEntries(inputs.flatMap(({ field, element }) => readField(field, element))));
      sent = true;
      if (closed) done(); // by the user, who did not wait
      else if (result) form.replaceChildren(make("h3", { id: "form-dialog-title" }, title), result, make("div", { class: "row" }, closeButton(close)));
      else close();
    } catch (error) {
      showIssues(error as TelapiError, issues, inputs);
    }
    confirm.disabled = false;
  };
  dialog().onclose = () => dialog().open || finish(); // the user has pressed Escape
  dialog().replaceChildren(form);
  dialog().showModal();
}

function closeButton(close: () => void): HTMLElement {
  const button = make("button", { type: "button", class: "primary" }, "Close");
  button.onclick = close;
  queueMicrotask(() => button.focus());
  return button;
}

/** Names everything that the service reports, and marks the fields. */
function showIssues(error: TelapiError, list: HTMLElement, inputs: { field: Field; element: HTMLElement }[]): void {
  const issues = issuesOf(error);
  list.replaceChildren(issueList(issues, "issue"));
  for (const { field, element } of inputs) {
    const invalid = issues.some(({ path }) => path === `/${field.name}` || path.startsWith(`/${field.name}/`));
    for (const input of element.querySelectorAll("input, textarea")) input.toggleAttribute("aria-invalid", invalid);
  }
}

/** The issues of an error: those in its details, or its message. */
export function issuesOf({ message, code, context }: TelapiError): Issue[] {
  const { details, requestId } = context ?? {};
  if (Array.isArray(details) && details.length) return details as Issue[];
  return [{ path: "", message: [message, code && `(${code}${requestId ? `, request ${requestId}` : ""})`].filter(Boolean).join(" ") }];
}

function fieldElement({ name, label, type, value, options = [], hint, required }: Field): HTMLElement {
  const notes = hint ? [make("small", { id: `admin-hint-${name}` }, hint)] : [];
  const common = { name, ...(hint ? { "aria-describedby": `admin-hint-${name}` } : {}), ...(required ? { required: "" } : {}), autocomplete: "off" };
  if (type === "choices") {
    const chosen = (value as string[] | undefined) ?? [];
    const boxes = options.map((option) => make("label", {}, make("input", { type: "checkbox", name, value: option, ...(chosen.includes(option) ? { checked: "" } : {}) }), option));
    return make("fieldset", {}, make("legend", {}, label), ...boxes, ...notes);
  }
  if (type === "checkbox") return make("div", {}, make("label", {}, make("input", { ...common, type, ...(value ? { checked: "" } : {}) }), label), ...notes);
  if (type === "lines") return make("div", {}, make("label", {}, label, make("textarea", { ...common, rows: "3", spellcheck: "false" }, ((value as string[] | undefined) ?? []).join("\n"))), ...notes);
  const kind = type === "time" ? "datetime-local" : type;
  return make("div", {}, make("label", {}, label, make("input", { ...common, type: kind, value: value === undefined || value === null ? "" : String(value), ...(type === "number" ? { step: "any" } : {}) })), ...notes);
}

/** The member of a field, or nothing if it is left out. */
function readField({ name, type }: Field, element: HTMLElement): [string, unknown][] {
  const inputs = [...element.querySelectorAll<HTMLInputElement>("input, textarea")];
  const [{ value, checked }] = inputs as [HTMLInputElement];
  const lines = value.split("\n").map((line) => line.trim()).filter(Boolean);
  switch (type) {
    case "checkbox": return [[name, checked]];
    case "choices": return [[name, inputs.filter((box) => box.checked).map((box) => box.value)]];
    case "lines": return [[name, lines]];
    case "number": return [[name, value === "" ? null : Number(value)]];
    case "time": return value ? [[name, new Date(value).toISOString()]] : [];
    default: return [[name, value]];
  }
}
