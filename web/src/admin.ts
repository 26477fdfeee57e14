import type { TelapiError } from "@telapi/sdk";
import { type Action, managesPlatform, type Row, type Scope, type Section, sectionsOf, sessionStates } from "./admin-sections.js";
import { issuesOf, openForm } from "./admin-form.js";
import { type Access, Api } from "./api.js";
import { byId, make } from "./dom.js";
import { issueList } from "./lint.js";

const button = (id: string) => byId<HTMLButtonElement>(id);

/** What the administration does with the rest of the page. */
export interface AdminActions {
  /** Is called when the user has entered a key, or has let the page forget it. */
  keyChanged(): void;
  endpointsChanged(): void;
  openPolicy(api: Api, endpointId: string): void;
  openUsage(api: Api): void;
}

/**
 * The administration panel: tables of teams, keys, endpoints, sessions, limits and changes. It offers what the key can do.
 * The key stays in memory.
 */
export class AdminPanel {
  private readonly team = byId<HTMLSelectElement>("admin-team");
  private readonly all = byId<HTMLInputElement>("admin-all-teams");
  private readonly state = byId<HTMLSelectElement>("admin-state");
  private current: { api: Api; access: Access; entered: boolean } | undefined;
  private section = "Endpoints";
  private request = 0; // number of the newest one; older results are dropped

  constructor(private readonly actions: AdminActions) {
    this.state.append(...sessionStates.map((state) => make("option", {}, state)));
    byId("admin-key-form").onsubmit = (event) => {
      event.preventDefault();
      const input = byId<HTMLInputElement>("admin-key");
      void this.use(input.value, true);
      input.value = "";
    };
    button("admin-forget").onclick = () => {
      this.current = undefined;
      this.showAccess();
      byId("admin-key").focus();
      this.actions.keyChanged();
    };
    button("admin-refresh").onclick = () => void this.show();
    this.team.onchange = this.all.onchange = this.state.onchange = () => void this.show();
    this.showAccess();
  }

  /** The client with the key of the administration, if there is one. */
  get api(): Api | undefined {
    return this.current?.api;
  }

  /** Uses the key of the page, if it can manage something, unless the user has entered another one. */
  async offer(key: string): Promise<void> {
    if (key && !this.current?.entered) await this.use(key, false);
  }

  private async use(key: string, entered: boolean): Promise<void> {
    const api = new Api(key);
    this.showError();
    try {
      const access = await api.access();
      const { data } = managesPlatform(access) ? await api.admin<{ data: Row[] }>("GET", "teams?limit=200") : { data: { data: [(await api.admin<Row>("GET", `teams/${access.teamId}`)).data] } };
      this.current = { api, access, entered };
      this.team.replaceChildren();
      for (const team of data.data) this.addTeam(team);
      this.selectTeam(access.teamId);
    } catch (error) {
      if (entered) return this.showError(error as TelapiError);
      this.current = undefined; // the page's key can manage nothing
      return this.showAccess();
    }
    this.showAccess();
    await this.show();
    if (!entered) return;
    byId("admin-sections").querySelector("button")?.focus();
    this.actions.keyChanged();
  }

  private showAccess(): void {
    const { access, entered } = this.current ?? {};
    byId("admin-key-form").hidden = !!access;
    byId("admin-content").hidden = !access;
    button("admin-forget").hidden = !entered;
    byId("admin-access").textContent = access ? (managesPlatform(access) ? "This key manages all teams." : "This key manages its team.") : "";
  }

  private selectTeam(id: string): void {
    this.addTeam({ id });
    this.team.value = id;
  }

  /** Offers a team, under its current name if it is known. */
  private addTeam({ id, name }: Row): void {
    const known = [...this.team.options].find(({ value }) => value === id);
    if (!known) this.team.append(make("option", { value: String(id) }, String(name ?? id)));
    else if (name) known.textContent = String(name);
  }

  /** Shows the selected table from its start. */
  private async show(): Promise<void> {
    if (!this.current) return;
    const { api, access } = this.current;
    const scope: Scope = {
      api, access, teamId: this.team.value, allTeams: this.all.checked, state: this.state.value,
      openTeam: (id) => {
        this.selectTeam(id);
        this.select("Endpoints");
      },
      openPolicy: (endpointId) => this.actions.openPolicy(api, endpointId),
    };
    const sections = sectionsOf(scope);
    const section = sections.find(({ name }) => name === this.section) ?? sections[0]!;
    this.showSections(sections, section);
    byId("admin-all-label").hidden = !section.filters?.includes("allTeams");
    byId("admin-state-label").hidden = !section.filters?.includes("state");
    const body = make("tbody", {});
    const head = make("tr", {}, ...Object.keys(section.columns).map((name) => make("th", { scope: "col" }, name)), ...(section.actions ? [make("th", { scope: "col" }, "Actions")] : []));
    const table = make("table", {}, make("caption", { class: "hidden" }, section.name), make("thead", {}, head), body);
    if (await this.load(section, body)) byId("admin-table").replaceChildren(table);
  }

  private showSections(sections: Section[], shown: Section): void {
    const buttons = sections.map((section) => {
      const select = make("button", { type: "button", ...(section === shown ? { "aria-current": "true" } : {}) }, section.name);
      select.onclick = () => this.select(section.name);
      return select;
    });
    const { api, access } = this.current!;
    if (access.scopes.includes("READ_TEAM_USAGE") && this.team.value === access.teamId) {
      const usage = make("button", { type: "button" }, "Usage");
      usage.onclick = () => this.actions.openUsage(api);
      buttons.push(usage);
    }
    const focused = byId("admin-sections").contains(document.activeElement);
    byId("admin-sections").replaceChildren(...buttons);
    if (focused) byId("admin-sections").querySelector<HTMLElement>("[aria-current]")?.focus();
    const create = button("admin-create");
    create.hidden = !shown.create;
    create.textContent = shown.create?.label ?? "";
    create.onclick = () => openForm(shown.create!.form(), () => this.changed());
  }

  private select(section: string): void {
    this.section = section;
    void this.show();
  }

  /** Adds a page of rows. Returns false if the user has selected something else meanwhile. */
  private async load(section: Section, body: HTMLElement, cursor?: string): Promise<boolean> {
    const request = ++this.request;
    byId("admin-content").ariaBusy = "true";
    try {
      const { data, nextCursor } = await section.list(cursor);
      if (request !== this.request) return false;
      if (section.name === "Teams") for (const team of data) this.addTeam(team);
      body.append(...data.map((row) => this.row(section, row)));
      const count = body.childElementCount;
      byId("admin-count").textContent = `${count} ${count === 1 ? "row" : "rows"}${nextCursor ? ", and more" : ""}`;
      const more = button("admin-more");
      more.hidden = !nextCursor;
      more.onclick = () => void this.load(section, body, nextCursor!);
      this.showError();
      return true;
    } catch (error) {
      if (request === this.request) this.showError(error as TelapiError);
      return request === this.request;
    } finally {
      if (request === this.request) byId("admin-content").ariaBusy = "false";
    }
  }

  private row({ columns, actions }: Section, row: Row): HTMLElement {
    const cells = Object.entries(columns).map(([name, render], index) => (index ? make("td", { "data-label": name }, render(row)) : make("th", { scope: "row" }, render(row))));
    const name = cells[0]!.textContent ?? "";
    if (actions) cells.push(make("td", { class: "actions" }, ...actions(row).map((action) => this.action(action, name))));
    return make("tr", {}, ...cells);
  }

  private action({ label, form, run }: Action, name: string): HTMLElement {
    const act = make("button", { type: "button", "aria-label": `${label} ${name}` }, label);
    act.onclick = async () => {
      if (run) return run();
      try {
        openForm(await form!(), () => this.changed());
      } catch (error) {
        this.showError(error as TelapiError);
      }
    };
    return act;
  }

  /** Shows the table again after a change. */
  private changed(): void {
    button("admin-refresh").focus(); // the row may be gone
    void this.show();
    if (this.section === "Endpoints") this.actions.endpointsChanged();
  }

  private showError(error?: TelapiError): void {
    byId("admin-error").replaceChildren(...(error ? [issueList(issuesOf(error), "issue")] : []));
  }
}
