import type { TelapiError } from "@telapi/sdk";
import { issuesOf, openForm } from "./admin-form.js";
import type { AdminEndpoint, Api, CommandSpec, Decision } from "./api.js";
import { byId, timeOfDay } from "./dom.js";
import { checkJson } from "./json-check.js";
import { decisionRow, decisionTable, dependentRow, issueList, lint, liveCheck, type Outcome } from "./lint.js";

/** Values for the required fields of a command, by type. */
const sampleValues: Record<string, unknown> = { boolean: true, integer: 1, number: 1, string: "1", object: {}, any: "1" };

/** The policy panel: decides on every command with an edited gateway profile, and saves it. */
export class PolicyPanel {
  private readonly editor = byId<HTMLTextAreaElement>("profile");
  private readonly source = byId<HTMLSelectElement>("policy-source");
  private readonly target = byId<HTMLInputElement>("policy-target");
  private readonly check = liveCheck(() => this.decide(), (outcome) => this.show(outcome));
  private readonly listeners: (() => void)[] = [];
  private readonly save = byId<HTMLButtonElement>("profile-save");
  private api: Api | undefined;
  private commands: CommandSpec[] = [];
  private saved = "{}"; // the endpoint's profile
  private endpoint: { data: AdminEndpoint; etag: string } | undefined; // as it was read
  private loads = 0; // an endpoint that was selected later replaces one that arrives later

  constructor() {
    this.editor.oninput = () => this.changed();
    this.source.onchange = this.target.oninput = () => this.changed();
    byId("profile-reset").onclick = () => {
      if (!this.api || !this.endpoint) return;
      this.editor.value = this.saved;
      this.changed();
      void this.load(this.api, this.endpoint.data.id);
    };
    this.save.onclick = () => void this.saveProfile();
  }

  /** The profile of the endpoint, or the edited one, as JSON. */
  profile(edited: boolean): string {
    return edited ? this.editor.value : this.saved;
  }

  /** Calls the listener when one of the profiles has changed. */
  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  /** Calls a function that loads an endpoint. If that would drop changes, the user is asked first. */
  leaveFor(endpointId: string, load: () => void): void {
    if (!this.edited || this.shows(endpointId)) return load();
    const title = `Discard your changes to ${this.endpoint!.data.name}?`;
    openForm({ title, text: "Its gateway profile has unsaved changes.", submit: "Discard", danger: true, send: async () => {} }, load);
  }

  /**
   * Shows the profile of an endpoint, unless another one was selected meanwhile. Keeps changes of the same one. Lists the
   * commands with another client if the key cannot read them.
   */
  async load(api: Api, endpointId: string, other = api): Promise<"shown" | "failed" | "outdated"> {
    const load = ++this.loads;
    this.editor.readOnly = !this.shows(endpointId); // what is typed now would be lost
    try {
      const endpoint = await api.endpoint(endpointId);
      const commands = await api.commands().catch(() => (other === api ? [] : other.commands())).catch(() => []);
      if (load !== this.loads) return "outdated";
      this.commands = commands;
      this.api = api;
      if (this.edited && this.shows(endpointId)) this.changed();
      else this.use(endpoint);
      return "shown";
    } catch (error) {
      if (load !== this.loads) return "outdated";
      this.show({ title: "", issues: issuesOf(error as TelapiError) });
      return "failed";
    } finally {
      if (load === this.loads) this.editor.readOnly = false;
    }
  }

  private get edited(): boolean {
    return !!this.endpoint && this.editor.value !== this.saved;
  }

  private shows(endpointId: string): boolean {
    return this.endpoint?.data.id === endpointId;
  }

  private use(endpoint: { data: AdminEndpoint; etag: string }): void {
    this.endpoint = endpoint;
    this.saved = JSON.stringify(endpoint.data.gatewayProfile, null, 2);
    byId("policy-endpoint").textContent = endpoint.data.name;
    this.editor.value = this.saved;
    this.changed();
  }

  /** Saves the edited profile, unless someone else has changed the endpoint since it was read. */
  private async saveProfile(): Promise<void> {
    const { data, etag } = this.endpoint!;
    const { loads } = this;
    this.save.disabled = true;
    try {
      const body = `{"gatewayProfile":${this.editor.value},${JSON.stringify({ ...data, gatewayProfile: undefined }).slice(1)}`; // as it was edited, with duplicate names
      const saved = await this.api!.admin<AdminEndpoint>("PUT", `endpoints/${data.id}`, body, etag);
      if (loads !== this.loads) return; // another endpoint is shown
      this.use(saved);
      byId("policy-saved").textContent = `Saved at ${timeOfDay(Date.now()).slice(0, 8)}. Open conversations keep the old profile.`;
    } catch (error) {
      if (loads !== this.loads) return;
      byId("policy-error").replaceChildren(issueList(issuesOf(error as TelapiError), "issue")); // a check that ends later does not replace it
      this.updateSave();
    }
  }

  private updateSave(): void {
    this.save.disabled = !this.edited || checkJson(this.editor.value).problems.length > 0;
  }

  private changed(): void {
    byId("policy-saved").textContent = "";
    byId("policy-error").replaceChildren();
    this.updateSave();
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
    const depends = ({ type, reason }: Decision) => type === "transfer" && reason === "target_missing"; // the sample has no target
    const rows = decisions.map((decision, index) =>
      depends(decision) ? dependentRow(decision.type, `depends on the target${tested ? "" : ": enter one above"}`) : decisionRow(decision.type + (index ? "" : tested), decision));
    const decided = decisions.filter((decision) => !depends(decision));
    const allowed = decided.filter(({ decision }) => decision === "allowed").length;
    byId("policy-summary").textContent = `${allowed} of ${decided.length} allowed`;
    const unknown = this.commands.length ? [] : [{ path: "", message: "The commands are unknown, because the key lacks the scope READ_TEAM_APPS. Enter a target to decide on a transfer." }];
    result.replaceChildren(decisionTable(rows), issueList([...warnings, ...unknown], "warning"));
  }
}
