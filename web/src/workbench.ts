import type { Session, TelapiError } from "@telapi/sdk";
import type { Api, DryRun, TimelineEvent } from "./api.js";
import { byId, make } from "./dom.js";
import { addInspectorAction } from "./inspector.js";
import { showTab } from "./layout.js";
import { decisionRow, decisionTable, issueList, lint, liveCheck, type Outcome } from "./lint.js";
import type { PolicyPanel } from "./policy.js";
import { templates } from "./templates.js";

type BotBody = { conversation?: { identifier?: { id?: string } } } | null;

/** The workbench: edits a callback, shows what it would do, and sends it to the session. */
export class Workbench {
  private readonly kind = byId<HTMLSelectElement>("callback-kind");
  private readonly body = byId<HTMLTextAreaElement>("callback-body");
  private readonly template = byId<HTMLSelectElement>("template");
  private readonly send = byId<HTMLButtonElement>("send-callback");
  private readonly check = liveCheck(() => this.lint(), (outcome) => this.show(outcome));
  private checker: Api | undefined; // for checks, which need a key that can manage the endpoint
  private api: Api | undefined; // of the session
  private session: Session | undefined;
  private valid = false; // as of the last check

  constructor(private readonly policy: PolicyPanel, private readonly onSent: (title: string, receipt: unknown) => void) {
    this.template.append(...templates.map(({ name }, index) => make("option", { value: String(index) }, name)));
    this.template.onchange = () => this.useTemplate();
    this.body.oninput = this.kind.onchange = byId("callback-policy").onchange = () => {
      byId("receipt").replaceChildren();
      this.changed();
    };
    byId("format").onclick = () => this.format();
    this.send.onclick = () => void this.sendCallback();
    policy.onChange(() => this.recheck());
    addInspectorAction("Edit and send again", isCallback, (event) => this.open(event));
    this.useTemplate();
  }

  /** Uses an API client for checks. */
  use(api: Api): void {
    this.checker = api;
    this.recheck();
  }

  /** Sends callbacks to this session from now on. */
  showSession(api: Api, session: Session): void {
    this.api = api;
    this.session = session;
    session.on("state", () => this.updateSend());
    void session.whenReady().then(() => this.replaceChannel(), () => {});
  }

  private open({ data }: TimelineEvent): void {
    this.kind.value = "bot"; // the demo bot's answers
    this.edit(data);
    showTab("workbench");
    this.body.focus();
  }

  private useTemplate(): void {
    const { kind, body } = templates[Number(this.template.value)]!;
    this.kind.value = kind;
    this.edit(body);
    this.replaceChannel();
  }

  private edit(body: unknown): void {
    this.body.value = JSON.stringify(body, null, 2);
    byId("receipt").replaceChildren();
    this.changed();
  }

  /** Replaces the placeholder of a template by the ID of the session. */
  private replaceChannel(): void {
    const { sessionId } = this.session ?? {};
    if (!sessionId || !this.body.value.includes('"CHANNEL"')) return;
    this.body.value = this.body.value.replaceAll('"CHANNEL"', JSON.stringify(sessionId));
    this.changed();
  }

  private format(): void {
    try {
      this.body.value = JSON.stringify(JSON.parse(this.body.value), null, 2);
    } catch {
      return; // the check reports it
    }
    this.changed();
  }

  private changed(): void {
    this.valid = false;
    this.updateSend();
    this.recheck();
  }

  /** Checks the same body again. Whether it is valid does not depend on the policy, so the button stays as it is. */
  private recheck(): void {
    if (this.checker) this.check();
  }

  private updateSend(): void {
    const open = !!this.session?.sessionId && this.session.state !== "ended";
    this.send.disabled = !open || !this.valid;
  }

  private async lint(): Promise<Outcome> {
    const edited = byId<HTMLSelectElement>("callback-policy").value === "edited";
    const { session } = this;
    const [kind, body] = [this.kind.value, this.body.value]; // they may change during the check
    const outcome = await lint(this.checker!, kind, body, this.policy.profile(edited));
    const channel = (JSON.parse("run" in outcome ? body : "null") as BotBody)?.conversation?.identifier?.id;
    if (kind !== "bot" || !channel || !session?.sessionId || channel === session.sessionId) return outcome;
    return { title: "Rejected with status 400", issues: [{ path: "/conversation/identifier/id", message: `Must be ${session.sessionId}, the channel of this session.` }] };
  }

  private show(outcome: Outcome): void {
    this.valid = "run" in outcome;
    this.updateSend();
    byId("lint-result").replaceChildren(...("run" in outcome ? effects(outcome.run) : [make("h3", {}, outcome.title), issueList(outcome.issues, "issue")]));
  }

  /** Sends the callback with a credential of its own, as a provider would. */
  private async sendCallback(): Promise<void> {
    this.send.disabled = true;
    const { api, session, kind, body } = this;
    try {
      const credential = await api!.issueCredential(session!.sessionId!, kind.value);
      const { status, receipt } = await api!.sendCallback(credential, body.value);
      const outcome = String((receipt as { status?: string; error?: { code: string } }).status ?? (receipt as { error?: { code: string } }).error?.code ?? "");
      this.onSent(`callback from the workbench: ${status} ${outcome}`, receipt);
      this.showReceipt(`${status} ${outcome}`, JSON.stringify(receipt, null, 2));
    } catch (error) {
      this.showReceipt("Not sent", (error as TelapiError).message);
    }
    this.updateSend();
  }

  private showReceipt(title: string, text: string): void {
    byId("receipt").replaceChildren(make("h3", {}, `Receipt: ${title}`), make("pre", { tabindex: "0" }, text));
  }
}

/** Whether an event is a callback whose body is known. */
function isCallback({ kind, to, data }: TimelineEvent): boolean {
  return kind === "callback" && to === "service" && typeof data === "object" && data !== null && !("omittedBytes" in data);
}

/** What a callback would do. */
function effects({ entries, decisions, warnings }: DryRun): HTMLElement[] {
  const entryList = entries.map((entry) => {
    const summary = [entry.text, entry.content, entry.event, entry.reason].find((part) => typeof part === "string") ?? (entry.command as { type?: string } | undefined)?.type ?? "";
    return make("details", {}, make("summary", {}, make("code", {}, String(entry.kind)), ` ${String(summary)}`), make("pre", { tabindex: "0" }, JSON.stringify(entry, null, 2)));
  });
  return [
    make("h3", {}, entries.length === 1 ? "1 entry for the runtime" : `${entries.length} entries for the runtime`),
    ...entryList,
    ...(decisions.length ? [make("h3", {}, "Commands"), decisionTable(decisions.map((decision) => decisionRow(decision.type, decision)))] : []),
    ...(warnings.length ? [make("h3", {}, "Warnings"), issueList(warnings, "warning")] : []),
  ];
}
