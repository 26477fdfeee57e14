import type { Access, AdminEndpoint, Api } from "./api.js";
import type { Field, Form } from "./admin-form.js";
import { make } from "./dom.js";
import { copyText } from "./inspector.js";

/** A row of a table, as the API returns it. */
export type Row = Record<string, unknown>;

export interface Action {
  label: string;
  form?: () => Promise<Form> | Form;
  run?: () => void;
}

/** A table of the administration. */
export interface Section {
  name: string;
  columns: Record<string, (row: Row) => Node | string>; // the first one names the row
  list(cursor?: string): Promise<{ data: Row[]; nextCursor: string | null }>;
  create?: { label: string; form: () => Form };
  actions?(row: Row): Action[];
  filters?: ("allTeams" | "state")[];
}

/** What the tables are about. */
export interface Scope {
  api: Api;
  access: Access;
  teamId: string;
  allTeams: boolean;
  state: string; // of sessions; empty: every state
  openTeam(id: string): void;
  openPolicy(endpointId: string): void;
}

const modes = ["webrtc", "audio", "chat"];
const teamScopes = ["CREATE_CALL_TOKEN", "READ_TEAM_APPS", "READ_TEAM_USAGE", "CREATE_SPEECH", "RUN_CALLS", "MANAGE_TEAM"];
const platformScopes = ["RUN_ALL_CALLS", "MANAGE_PLATFORM"];
export const sessionStates = ["issued", "connected", "disconnected", "ended", "expired", "revoked"];

/** Whether the key manages all teams. */
export const managesPlatform = ({ scopes }: Access) => scopes.includes("MANAGE_PLATFORM");

/** The tables that a key can read, with the actions that it can do. */
export function sectionsOf(scope: Scope): Section[] {
  const sections = [endpoints(scope), keys(scope), sessions(scope), teams(scope)];
  return managesPlatform(scope.access) ? [...sections, limits(scope), audit(scope)] : sections;
}

function teams({ api, access, teamId, openTeam }: Scope): Section {
  const platform = managesPlatform(access);
  const fields = (row: Row = {}): Field[] => [
    { name: "name", label: "Name", type: "text", value: row.name, required: true },
    { name: "dailyQuota", label: "API requests per day", type: "number", value: row.dailyQuota, hint: "Empty: the default." },
  ];
  const edit = async (row: Row): Promise<Form> => {
    const { data, etag } = await api.admin<Row>("GET", `teams/${id(row)}`);
    return {
      title: `Change team ${text(data.name)}`,
      fields: [...fields(data), { name: "disabled", label: "Disabled", type: "checkbox", value: data.disabled, hint: "Its keys are rejected, and its sessions end." }],
      submit: "Save",
      send: async (values) => void (await api.admin("PATCH", `teams/${id(row)}`, values, etag)),
    };
  };
  return {
    name: "Teams",
    columns: {
      Name: (row) => text(row.name),
      State: (row) => state(row.disabled ? "disabled" : "enabled"),
      "Requests today": (row) => make("span", {}, `${count(row.usedToday)} of ${count(row.dailyQuota)} `, make("meter", { max: text(row.dailyQuota), value: text(row.usedToday), "aria-label": "Part of the daily quota" })),
      Created: (row) => time(row.createdAt),
      ID: (row) => code(row.id),
    },
    list: async (cursor) => (platform ? (await api.admin<Page>("GET", page("teams", { cursor }))).data : { data: [(await api.admin<Row>("GET", `teams/${teamId}`)).data], nextCursor: null }),
    ...(platform
      ? {
          create: { label: "New team", form: () => ({ title: "New team", fields: fields(), submit: "Create", send: async (values) => void (await api.admin("POST", "teams", values)) }) },
          actions: (row) => [{ label: "Open", run: () => openTeam(id(row)) }, { label: "Edit", form: () => edit(row) }],
        }
      : {}),
  };
}

function keys({ api, access, teamId }: Scope): Section {
  const create = (): Form => ({
    title: "New key",
    fields: [
      { name: "name", label: "Name", type: "text" },
      { name: "scopes", label: "Scopes", type: "choices", options: managesPlatform(access) ? [...teamScopes, ...platformScopes] : teamScopes },
      { name: "expiresAt", label: "Expires", type: "time", hint: "Empty: never." },
    ],
    submit: "Create",
    send: async (values) => showSecret(text((await api.admin<Row>("POST", `teams/${teamId}/keys`, values)).data.key)),
  });
  return {
    name: "Keys",
    columns: {
      Name: (row) => text(row.name) || text(row.id),
      State: (row) => state(text(row.state)),
      Scopes: (row) => (row.scopes as string[]).join(", "),
      Created: (row) => time(row.createdAt),
      Expires: (row) => (row.expiresAt ? time(row.expiresAt) : "never"),
      "Last used": (row) => (row.lastUsedAt ? time(row.lastUsedAt) : "never"),
      ID: (row) => code(row.id),
    },
    list: async (cursor) => (await api.admin<Page>("GET", page(`teams/${teamId}/keys`, { cursor }))).data,
    create: { label: "New key", form: create },
    actions: (row) => (row.state === "revoked" ? [] : [{
      label: "Revoke",
      form: () => ({
        title: `Revoke key ${text(row.name) || id(row)}?`, text: `It is rejected within a second, and cannot be restored.${row.id === api.keyId ? " This page uses it." : ""}`, submit: "Revoke", danger: true,
        send: async () => void (await api.admin("DELETE", `keys/${id(row)}`)),
      }),
    }]),
  };
}

/** Shows a new key. It is gone when the dialog closes. */
function showSecret(secret: string): HTMLElement {
  const shown = make("code", { class: "secret", tabindex: "0" }, secret);
  const copy = make("button", { type: "button" }, "Copy key");
  copy.onclick = async () => (copy.textContent = await copyText(secret, shown));
  return make("div", { role: "status" }, make("p", {}, "This is the only copy of the key. It is not stored and cannot be shown again."), shown, copy);
}

function endpoints({ api, teamId, openPolicy }: Scope): Section {
  const fields = (endpoint?: AdminEndpoint): Field[] => [
    { name: "name", label: "Name", type: "text", value: endpoint?.name, required: true },
    { name: "enabled", label: "Enabled", type: "checkbox", value: endpoint?.enabled ?? true, hint: "A disabled endpoint accepts no new sessions." },
    { name: "modes", label: "Modes", type: "choices", options: modes, value: endpoint?.modes ?? ["chat"] },
    { name: "origins", label: "Origins, one per line", type: "lines", value: endpoint?.origins, hint: "Web pages that may connect, such as https://shop.example. Empty: pages of the same host." },
  ];
  const edit = async (row: Row): Promise<Form> => {
    const { data, etag } = await api.endpoint(id(row));
    return {
      title: `Change endpoint ${data.name}`, fields: fields(data), submit: "Save",
      send: async (values) => void (await api.admin("PUT", `endpoints/${id(row)}`, { ...data, ...values }, etag)),
    };
  };
  return {
    name: "Endpoints",
    columns: {
      Name: (row) => text(row.name),
      State: (row) => state(row.enabled ? "enabled" : "disabled"),
      Modes: (row) => (row.modes as string[]).join(", "),
      Commands: (row) => (row as unknown as AdminEndpoint).capabilities.commands.join(", ") || "none",
      Origins: (row) => (row.origins as string[]).join(", ") || "same host",
      ID: (row) => code(row.id),
    },
    list: async (cursor) => (await api.admin<Page>("GET", page(`teams/${teamId}/endpoints`, { cursor }))).data,
    create: { label: "New endpoint", form: () => ({ title: "New endpoint", fields: fields(), submit: "Create", send: async (values) => void (await api.admin("POST", `teams/${teamId}/endpoints`, values)) }) },
    actions: (row) => [
      { label: "Edit", form: () => edit(row) },
      { label: "Policy", run: () => openPolicy(id(row)) },
      {
        label: "Delete",
        form: () => ({
          title: `Delete endpoint ${text(row.name)}?`, text: "Its sessions end at once. Its usage stays.", submit: "Delete", danger: true,
          send: async () => void (await api.admin("DELETE", `endpoints/${id(row)}`)),
        }),
      },
    ],
  };
}

function sessions({ api, access, teamId, allTeams, state: wanted }: Scope): Section {
  return {
    name: "Sessions",
    columns: {
      Session: (row) => code(row.sessionId),
      State: (row) => state(text(row.state)),
      Mode: (row) => text(row.mode),
      Issued: (row) => time(row.issuedAt),
      Ended: (row) => (row.endedAt ? time(row.endedAt) : "–"),
      Endpoint: (row) => code(row.endpointId),
      ...(allTeams ? { Team: (row: Row) => code(row.teamId) } : {}),
    },
    list: async (cursor) => (await api.admin<Page>("GET", page("sessions", { cursor, teamId: allTeams ? "" : teamId, state: wanted }))).data,
    filters: managesPlatform(access) ? ["state", "allTeams"] : ["state"],
    actions: (row) => (!["issued", "connected", "disconnected"].includes(text(row.state)) ? [] : [{
      label: "End",
      form: () => ({
        title: "End this session?", text: text(row.sessionId), submit: "End session", danger: true,
        send: async () => void (await api.admin("DELETE", `sessions/${text(row.sessionId)}`)),
      }),
    }]),
  };
}

function limits({ api }: Scope): Section {
  type Tiers = Record<string, { max: number; windowMs: number }>;
  const read = async () => {
    const { data, etag } = await api.admin<{ tiers: Tiers }>("GET", "limits");
    return { tiers: data.tiers, etag };
  };
  const edit = async (tier: string): Promise<Form> => {
    const { tiers, etag } = await read();
    return {
      title: `Limit of tier ${tier}`,
      text: "Per client address, on every instance within a second.",
      fields: [
        { name: "max", label: "Requests", type: "number", value: tiers[tier]!.max, required: true },
        { name: "windowMs", label: "Window in ms", type: "number", value: tiers[tier]!.windowMs, required: true },
      ],
      submit: "Save",
      send: async (values) => void (await api.admin("PUT", "limits", { tiers: { ...tiers, [tier]: values } }, etag)),
    };
  };
  return {
    name: "Limits",
    columns: { Tier: (row) => text(row.tier), Requests: (row) => count(row.max), Window: (row) => `${Number(row.windowMs) / 1000} s` },
    list: async () => ({ data: Object.entries((await read()).tiers).map(([tier, limit]) => ({ tier, ...limit })), nextCursor: null }),
    actions: (row) => [{ label: "Edit", form: () => edit(text(row.tier)) }],
  };
}

function audit({ api, teamId, allTeams }: Scope): Section {
  const changes = ({ details }: Row): Node | string => {
    const { changes = [], more, attempts = [], requests } = details as { changes?: Row[]; more?: number; attempts?: Row[]; requests?: number };
    const lines = [
      ...changes.map(({ path, from, to }) => `${text(path)}: ${from === undefined ? "" : `${value(from)} → `}${to === undefined ? "removed" : value(to)}`),
      ...attempts.map(({ request, code }) => `${text(request)}: ${text(code)}`),
      ...(more ? [`and ${more} more`] : []),
    ].map((line) => make("div", {}, line));
    if (lines.length <= 3) return make("span", {}, ...lines);
    return make("details", {}, make("summary", {}, requests ? `${requests} requests` : `${changes.length + (more ?? 0)} changes`), ...lines);
  };
  return {
    name: "Audit",
    columns: {
      Time: (row) => time(row.at),
      Action: (row) => text(row.action),
      By: ({ actor }) => `${text((actor as Row).type)} ${text((actor as Row).id)}`,
      Target: (row) => code(row.target),
      Changes: changes,
    },
    list: async (cursor) => (await api.admin<Page>("GET", page("audit", { cursor, teamId: allTeams ? "" : teamId }))).data,
    filters: ["allTeams"],
  };
}

type Page = { data: Row[]; nextCursor: string | null };

function page(path: string, params: Record<string, string | undefined>): string {
  const query = new URLSearchParams(Object.entries(params).flatMap(([name, value]) => (value ? [[name, value]] : [])));
  return query.size ? `${path}?${query}` : path;
}

const text = (value: unknown) => String(value ?? "");
const id = (row: Row) => encodeURIComponent(text(row.id));
const code = (value: unknown) => make("code", {}, text(value));
const count = (value: unknown) => Number(value).toLocaleString("en");
const state = (name: string) => make("span", { "data-state": name }, name);
const value = (json: unknown) => (typeof json === "string" ? json : JSON.stringify(json));
const time = (value: unknown) => make("time", { datetime: text(value) }, new Date(text(value)).toLocaleString("sv"));
