import type { TelapiError } from "@telapi/sdk";
import type { Api, CommandSpec } from "./api.js";
import { byId } from "./dom.js";
import { decisionRow, decisionTable, issueList, lint, liveCheck, type Outcome } from "./lint.js";

/** Values for the required fields of a command, by type. */
const sampleValues: Record<string, unknown> = { boolean: true, integer: 1, number: 1, string: "1", object: {}, any: "1" };

/** The policy panel: decides on every command with an edited gateway profile. Nothing is saved. */
export class PolicyPanel {
  private readonly editor = byId<HTMLTextAreaElement>("profile");
  private readonly source = byId<HTMLSelectElement>("policy-source");
  private readonly target = byId<HTMLInputElement>("policy-target");
  private readonly check = liveCheck(() => this.decide(), (outcome) => this.show(outcome));
  private readonly listeners: (() => void)[] = [];
  private api: Api | undefined;
  private commands: CommandSpec[] = [];
  private saved = "{}"; // the endpoint's profile

  constructor() {
    this.editor.oninput = () => this.changed();
    this.source.onchange = this.target.oninput = () => this.changed();
    byId("profile-reset").onclick = () => this.edit(this.saved);
  }

  /** The profile of the endpoint, or the edited one, as JSON. */
  profile(edited: boolean): string {
    return edited ? this.editor.value : this.saved;
  }

  /** Calls the listener when one of the profiles has changed. */
  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  /** Shows the profile of an endpoint. Returns false if it cannot be read. */
  async load(api: Api, endpointId: string): Promise<boolean> {
    try {
      const endpoints = await api.endpoints();
      this.commands = await api.commands();
      this.api = api;
      this.saved = JSON.stringify(endpoints.find(({ id }) => id === endpointId)?.gatewayProfile ?? {}, null, 2);
      this.edit(this.saved);
      return true;
    } catch (error) {
      this.show({ title: "", issues: [{ path: "", message: (error as TelapiError).message }] });
      return false;
    }
  }

  private edit(text: string): void {
    this.editor.value = text;
    this.changed();
  }

  private changed(): void {
    if (this.api) this.check();
    for (const listener of this.listeners) listener();
  }

  /** Decides on all commands, and first on a transfer to the target, if there is one. */
  private async decide(): Promise<Outcome> {
    const commands = this.commands.map(({ type, fields }) => ({
      type,
      ...Object.fromEntries(fields.filter(({ required }) => required).map((field) => [field.name, sampleValues[field.type]])),
    }));
    const target = this.target.value.trim();
    if (!target) return this.lintCommands(commands);
    const outcome = await this.lintCommands([{ type: "transfer", target }, ...commands]);
    const invalid = "issues" in outcome && outcome.issues.find(({ path }) => /^\/(actions|commands)\/0\/target$/.test(path));
    if (!invalid) return outcome;
    const others = await this.lintCommands(commands);
    if ("run" in others) others.run.decisions.unshift({ type: "transfer", decision: "invalid", reason: invalid.message });
    return others;
  }

  private lintCommands(commands: object[]): Promise<Outcome> {
    const llm = this.source.value === "llm";
    const body = llm ? { content: "x", commands } : { conversation: { identifier: { id: "x" } }, actions: commands };
    return lint(this.api!, this.source.value, JSON.stringify(body), this.editor.value);
  }

  private show(outcome: Outcome): void {
    const result = byId("policy-result");
    byId("policy-summary").textContent = "";
    if ("issues" in outcome) {
      result.replaceChildren(issueList(outcome.issues, "issue"));
      return;
    }
    const { decisions, warnings } = outcome.run;
    const tested = decisions.length > this.commands.length ? ` to ${this.target.value.trim()}` : "";
    const rows = decisions.map((decision, index) => decisionRow(decision.type + (index ? "" : tested), decision));
    const allowed = decisions.filter(({ decision }) => decision === "allowed").length;
    byId("policy-summary").textContent = `${allowed} of ${decisions.length} allowed`;
    result.replaceChildren(decisionTable(rows), issueList(warnings, "warning"));
  }
}
