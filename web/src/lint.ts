import type { TelapiError } from "@telapi/sdk";
import type { Api, Decision, DryRun, Issue } from "./api.js";
import { make } from "./dom.js";
import { checkJson, lineAndColumn } from "./json-check.js";

/** Delay between the last key and the check. */
const pauseMs = 300;

/** What a callback would do, or what is wrong with it. */
export type Outcome = { run: DryRun } | { title: string; issues: Issue[] };

/** Checks a callback. Body and profile are JSON texts. */
export async function lint(api: Api, kind: string, body: string, profile: string): Promise<Outcome> {
  const issues = [...checkJSON("body", body), ...checkJSON("profile", profile)];
  if (issues.length) return { title: "Incomplete", issues };
  try {
    return { run: await api.lint(kind, body, profile) };
  } catch (error) {
    const { message, context } = error as TelapiError;
    const issues = Array.isArray(context.details) ? (context.details as Issue[]).map((issue) => locate(issue, { body, profile })) : [{ path: "", message }];
    return { title: context.status === 400 ? "Rejected with status 400" : "Not checked", issues };
  }
}

/** Reports where a text is not JSON. */
function checkJSON(name: string, text: string): Issue[] {
  if (!text.trim()) return [{ path: "", message: `The ${name} is empty.` }];
  return checkJson(text).problems.map(({ at, message }) => {
    const { line, column } = lineAndColumn(text, at);
    return { path: "", message: `The ${name} is not valid JSON, line ${line}, column ${column}: ${message}.` };
  });
}

/** Adds the line of the value that a problem is about. A missing member has that of the object. */
function locate({ path, message }: Issue, texts: Record<string, string>): Issue {
  const [, name, pointer] = /^\/(body|profile)(.*)$/.exec(path) ?? ["", "body", path];
  const text = texts[name!]!;
  const { positions } = checkJson(text);
  let found = pointer!;
  while (!positions.has(found) && found) found = found.slice(0, found.lastIndexOf("/"));
  const { line, column } = lineAndColumn(text, positions.get(found) ?? 0);
  return { path, message: `${message} (${name} line ${line}, column ${column})` };
}

/** Returns a function that starts a check after typing has paused. A result is dropped if a newer check was requested. */
export function liveCheck<Result>(check: () => Promise<Result>, show: (result: Result) => void): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let requested = 0;
  return () => {
    clearTimeout(timer);
    const current = ++requested;
    timer = setTimeout(() => {
      void check().then((result) => {
        if (current === requested) show(result);
      });
    }, pauseMs);
  };
}

/** A list of problems, each with its JSON Pointer. */
export function issueList(issues: Issue[], kind: "issue" | "warning"): HTMLElement {
  return make("ul", { class: "issues", "data-kind": kind }, ...issues.map(({ path, message }) => make("li", {}, ...(path ? [make("code", {}, path), " "] : []), message)));
}

/** Why a command is denied, by reason. */
const reasons: Record<string, string> = {
  unknown_action: "not a managed command",
  platform_disabled: "disabled on this platform",
  source_not_allowed: "commandSources does not list the source",
  type_not_allowed: "commandPolicies has no policy for the command",
  type_disabled: "the policy for the command is disabled",
  field_missing: "a required field is missing",
  target_missing: "neither the command nor the profile has a target",
  target_not_allowed: "no pattern of allowedTargets matches",
  parameter_not_allowed: "a parameter of the target URI is not allowed",
  header_not_allowed: "a SIP header or query parameter is not allowed",
  provider_not_in_chain: "the profile's speech chain does not list the provider",
};

/** A row of a table of decisions. */
export function decisionRow(name: string, { decision, reason, ignored }: Decision): HTMLElement {
  const why = reason ? [make("code", {}, reason), ` ${reasons[reason] ?? ""}`] : [];
  const unread = ignored?.length ? [make("div", {}, "ignored: ", make("code", {}, ignored.join(", ")))] : [];
  return make("tr", {}, make("th", { scope: "row" }, name), make("td", { "data-decision": decision }, decision), make("td", {}, ...why, ...unread));
}

/** A row for a command that is not decided: why. */
export function dependentRow(name: string, why: string): HTMLElement {
  return make("tr", {}, make("th", { scope: "row" }, name), make("td", { colspan: "2" }, why));
}

/** A table of decisions. */
export function decisionTable(rows: HTMLElement[]): HTMLElement {
  const head = make("tr", {}, ...["Command", "Decision", "Reason"].map((title) => make("th", { scope: "col" }, title)));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}
