import { connect, type Session, type StateChange, TelapiError, type TokenResponse } from "@telapi/sdk";
import { AdminPanel } from "./admin.js";
import { Api, type Endpoint, type PlaygroundConfig, type TokenRequest, type TimelineEvent, type Waiting } from "./api.js";
import { Chat } from "./chat.js";
import { byId, make, timeOfDay } from "./dom.js";
import { CallPanel, showSpeechNotice, voiceModes } from "./call.js";
import { addInspectorAction, copyText, curlOf, needsCallbackToken } from "./inspector.js";
import { HistoryPanel } from "./history.js";
import { reconnectWhenHealthy } from "./health.js";
import { setUpTabs, setUpTheme, showTab } from "./layout.js";
import { SimulatedWebSocket } from "./network.js";
import { PolicyPanel } from "./policy.js";
import { showRates } from "./rates.js";
import { type SavedSession, saveWhenLeft, takeSavedSession } from "./reload.js";
import { ResiliencePanel } from "./resilience.js";
import { Timeline } from "./timeline.js";
import { TracePanel } from "./trace-panel.js";
import { UsagePanel } from "./usage.js";
import { nothing, WaitingPanel } from "./waiting.js";
import { Workbench } from "./workbench.js";

const endpoint = byId<HTMLSelectElement>("endpoint");
const key = byId<HTMLInputElement>("key");
const button = (id: string) => byId<HTMLButtonElement>(id);

/** Which button gets the focus when the focused one is disabled. */
const focusAfter: Record<string, string> = { retry: "text", open: "text", "text-chat": "text", close: "call", cut: "resume", resume: "cut", drop: "resume" };

/** The page: one session at a time, and its panels. */
class Playground {
  private readonly timeline = new Timeline();
  private readonly call = new CallPanel(() => this.open(true), (...saved) => void this.history.addRecording(...saved));
  private readonly usage = new UsagePanel();
  private readonly waiting = new WaitingPanel({
    cancel: (workItemId) => this.api.cancelWorkItem(this.session!.sessionId!, workItemId).catch((error: unknown) => this.showError(error)),
    command: (withKey) => `TELAPI_URL=${location.origin} TELAPI_KEY=${withKey && key.value ? key.value : "tk_…"} go -C examples/runtime-go run ./echo`,
  });
  private readonly policy = new PolicyPanel();
  private readonly workbench = new Workbench(this.policy, (title, receipt) => this.timeline.note(title, receipt));
  private readonly admin = new AdminPanel({
    keyChanged: () => {
      this.showPolicy();
      this.usage.start(key.value ? this.api : undefined); // not with a key that was forgotten
    },
    endpointsChanged: () => void this.loadEndpoints(),
    openPolicy: (api, endpointId) => this.policy.leaveFor(endpointId, () => {
      void this.policy.load(api, endpointId, key.value ? this.api : api);
      showTab("policy");
    }),
    openUsage: (api) => {
      this.usage.start(api);
      showTab("usage");
    },
  });
  private readonly chat: Chat;
  private readonly history: HistoryPanel;
  private readonly resilience: ResiliencePanel;
  private endpoints: Endpoint[] = [];
  private endpointId = ""; // of the selected one
  private api = new Api("");
  private session: Session | undefined;
  private token: TokenResponse | undefined; // of the session
  private feed = new AbortController(); // ends the event feed
  private waitsFor = nothing; // the session, by its feed
  private countdown: ReturnType<typeof setInterval> | undefined;

  constructor(config: PlaygroundConfig) {
    this.chat = new Chat(config.phrases);
    this.resilience = new ResiliencePanel(config.instances ?? 0, !!config.apiKey, (title) => this.timeline.note(title));
    new TracePanel(this.timeline);
    this.history = new HistoryPanel(this.timeline);
    addInspectorAction("Copy as curl with a new token", needsCallbackToken, (event) => this.copyWithToken(event));
    key.value = config.apiKey ?? "";
    showSpeechNotice(config.speechProviders);
    byId("bot-url").hidden = !config.ownBot;
    byId("bot-url").replaceChildren("Your bot answers: ", make("code", {}, config.botUrl ?? ""));
    byId<HTMLDetailsElement>("more").open = !config.apiKey;
    key.onchange = () => this.useKey();
    endpoint.onchange = () => {
      const { value } = endpoint;
      endpoint.value = this.endpointId; // until the user agrees
      this.policy.leaveFor(value, () => {
        endpoint.value = value;
        this.showModes();
        void this.loadPolicy();
      });
    };
    byId("connect").onsubmit = (event) => {
      event.preventDefault();
      this.open();
    };
    button("text-chat").onclick = () => {
      document.querySelector<HTMLInputElement>("#modes input[value=chat]")!.checked = true;
      this.open();
    };
    button("close").onclick = () => void this.close();
    button("retry").onclick = () => this.session?.resume();
    button("cut").onclick = () => this.session?.cut();
    button("resume").onclick = () => this.session?.resume();
    button("drop").onclick = () => void this.dropOnServer();
    byId("keypad").append(...[..."123456789*0#"].map((digit) => this.keypadButton(digit)));
    this.showState("idle", "Not connected");
    this.useKey();
    showRates(() => this.metrics());
    const saved = takeSavedSession();
    if (saved) this.resume(saved);
    saveWhenLeft(() => this.saved());
    const channel = new URLSearchParams(location.search).get("channel");
    if (channel) this.watch(channel);
  }

  /** The metrics of all instances; nothing if METRICS_TOKEN is set. */
  private async metrics(): Promise<string | undefined> {
    if (this.resilience.instances) return key.value ? this.api.instanceMetrics() : "";
    const response = await fetch("/metrics");
    return response.status === 401 ? undefined : response.ok ? response.text() : "";
  }

  private useKey(): void {
    this.api = new Api(key.value);
    this.resilience.use(this.api);
    this.usage.start(key.value ? this.api : undefined);
    void this.loadEndpoints().then(() => this.showPolicy());
    void this.admin.offer(key.value);
  }

  /** Loads the endpoints of the API key's team. */
  private async loadEndpoints(): Promise<void> {
    try {
      this.endpoints = key.value ? await this.api.endpoints() : [];
      const { value } = endpoint;
      endpoint.replaceChildren(...this.endpoints.map(({ id, name }) => make("option", { value: id, ...(id === value ? { selected: "" } : {}) }, name)));
      this.showModes();
    } catch (error) {
      this.showError(error);
    }
  }

  /** Shows the policy of the selected endpoint, unless the user keeps changes of another one. */
  private showPolicy(): void {
    if (endpoint.value && key.value) this.policy.leaveFor(endpoint.value, () => void this.loadPolicy());
  }

  /** Shows the policy of the selected endpoint, with a key that can manage it. */
  private async loadPolicy(): Promise<void> {
    const { value } = endpoint;
    for (const api of new Set([this.admin.api ?? this.api, this.api])) {
      const loaded = await this.policy.load(api, value, this.api);
      if (loaded === "shown") this.workbench.use(api);
      if (loaded !== "failed") return;
    }
  }

  /** Shows the modes of the selected endpoint. Keeps the selected one, if it has it. */
  private showModes(): void {
    this.endpointId = endpoint.value;
    const modes = this.endpoints.find(({ id }) => id === endpoint.value)?.capabilities.modes ?? [];
    const selected = document.querySelector<HTMLInputElement>("#modes input:checked")?.value;
    const preferred = [selected, ...voiceModes].find((mode) => mode && modes.includes(mode)) ?? modes[0];
    button("text-chat").hidden = !modes.includes("chat");
    byId("modes").replaceChildren(
      make("legend", {}, "Mode"),
      ...modes.map((mode) => make("label", {}, make("input", { type: "radio", name: "mode", value: mode, ...(mode === preferred ? { checked: "" } : {}) }), mode)),
    );
  }

  /** Opens a session in the selected mode; for a call, in a mode in which the caller can speak. */
  private open(forCall = false): void {
    const radios = [...document.querySelectorAll<HTMLInputElement>("#modes input")];
    const selected = radios.find(({ checked }) => checked);
    const voice = radios.filter(({ value }) => voiceModes.includes(value)).sort((a, b) => voiceModes.indexOf(a.value) - voiceModes.indexOf(b.value));
    if (forCall && !voice.includes(selected!) && voice[0]) voice[0].checked = true;
    const identity = byId<HTMLInputElement>("identity").value.trim();
    const mode = document.querySelector<HTMLInputElement>("#modes input:checked")?.value ?? "chat";
    const params: TokenRequest = { endpointId: endpoint.value, mode, ...(identity ? { identity: { id: identity } } : {}) };
    const api = (this.api = new Api(key.value, this.timeline));
    this.token = undefined;
    this.start(connect({ issue: async () => (this.token = await api.issue(params)), WebSocket: SimulatedWebSocket }), mode);
  }

  /** Goes on with the session that the page had before it was reloaded. */
  private resume({ token, position, messages, events, inCall }: SavedSession): void {
    this.api = new Api(key.value, this.timeline);
    this.token = token;
    this.start(connect({ token, ...(position ? { from: position } : {}), WebSocket: SimulatedWebSocket }), (token as { mode?: string }).mode ?? "chat", true);
    this.chat.restore(messages);
    this.timeline.restore(events);
    if (inCall) this.call.offerAgain();
  }

  /** Returns the session for a reload of the page, or nothing if there is none or it has ended. */
  private saved(): SavedSession | undefined {
    const { session, token } = this;
    if (!session || !token || session.state === "ended") return undefined;
    return { token, messages: this.chat.save(), events: this.timeline.ownEvents(), inCall: this.call.active, ...(session.position ? { position: session.position } : {}) };
  }

  /** Shows a session in all panels. */
  private start(session: Session, mode: string, resumed = false): void {
    const { api } = this;
    this.session?.dispose();
    this.feed.abort();
    this.feed = new AbortController();
    this.waitsFor = nothing;
    byId("rejection").hidden = byId("session").hidden = true;
    byId("session").textContent = ""; // not known yet
    this.timeline.start();
    this.usage.start(key.value ? api : undefined);

    this.session = session;
    session.on("frame", (frame) => this.timeline.fromConnection(frame));
    session.on("rejected", ({ error, final }) => this.timeline.note(`rejected: ${error.message}`, { code: error.code, ...error.context, final }));
    session.on("state", (change) => this.onStateChange(change));
    reconnectWhenHealthy(session);
    this.resilience.showSession(api, session, resumed);
    this.chat.show(session);
    this.workbench.showSession(api, session);
    this.call.show(session, mode);
    void session.whenReady().then(
      () => this.showFeed(session),
      () => {}, // reported as a state change
    );
  }

  /** Shows the session's ID and the events of its feed. */
  private showFeed(session: Session): void {
    byId("session").textContent = session.sessionId!;
    byId("session").hidden = false;
    const { endpointId, mode } = this.token as TokenResponse & TokenRequest;
    byId("session-summary").textContent = `${this.endpoints.find(({ id }) => id === endpointId)?.name ?? endpointId} · ${mode}`;
    if (!key.value) return; // a reload does not keep it
    const onEvent = (event: TimelineEvent) => {
      this.timeline.fromFeed(event);
      this.resilience.addEvent(event);
      this.usage.addEvent(event);
      if (event.kind === "waiting") this.showWaiting(session.state, event.data as Waiting);
      else this.waiting.addEvent(event);
    };
    this.api.streamEvents({ sessionId: session.sessionId! }, () => session.state === "ended", this.feed.signal, onEvent).catch((error: unknown) => this.showError(error));
  }

  /** Shows what the session waits for. While the browser is disconnected, forRuntime is false, and the page keeps what it showed. */
  private showWaiting(state: StateChange["state"], waiting: Waiting): void {
    if (state === "ended") return;
    this.waitsFor = waiting;
    if (state === "connected") this.timeline.showUnclaimed(waiting.forRuntime);
    this.waiting.showReasons({ ...waiting, forRuntime: this.timeline.unclaimed });
  }

  /** Shows a channel without a browser, which a call runtime has opened, such as a phone call. */
  private watch(channelId: string): void {
    let ended = false;
    byId("session").textContent = channelId;
    byId("session").hidden = false;
    byId("session-summary").textContent = "opened by a call runtime";
    this.showState("idle", "Watching a channel");
    const onEvent = (event: TimelineEvent) => {
      ended ||= event.kind === "session" && event.title.startsWith("ended:");
      this.timeline.fromFeed(event);
      this.waiting.addEvent(event);
    };
    this.api.streamEvents({ channelId }, () => ended, this.feed.signal, onEvent).catch((error: unknown) => this.showError(error));
  }

  /** Copies a callback as a curl command, with a credential that works once. */
  private async copyWithToken({ http, data }: TimelineEvent): Promise<string> {
    const { session } = this;
    if (!session?.sessionId || session.state === "ended") return "Connect to get a token";
    try {
      const credential = await this.api.issueCredential(session.sessionId, "bot");
      return await copyText(curlOf({ ...http!, url: new URL(credential.path, location.href).href, headers: { ...http!.headers, token: credential.token } }, data, [
        `The token works once, until ${timeOfDay(Date.parse(credential.expiresAt)).slice(0, 8)}. Later answers wait for it until then.`,
      ]), byId("json"));
    } catch (error) {
      this.showError(error);
      return "No token";
    }
  }

  private async close(): Promise<void> {
    const { session, api } = this;
    button("close").disabled = true;
    try {
      if (session?.sessionId) await api.end(session.sessionId);
    } catch (error) {
      this.showError(error);
    }
    session?.dispose(); // if the service has not ended it already
    button("call").focus();
  }

  private async dropOnServer(): Promise<void> {
    try {
      await this.api.dropSocket(this.session!.sessionId!);
    } catch (error) {
      this.showError(error);
    }
  }

  private onStateChange({ state, retryInMs, reason, attempt }: StateChange): void {
    const texts: Record<StateChange["state"], string> = {
      connecting: attempt ? `Connecting, attempt ${attempt + 1}` : "Connecting",
      connected: "Connected",
      waiting: "Connection lost, retrying",
      offline: "Offline, waiting for the network",
      cut: "Connection cut",
      ended: reason?.context.status ? "Rejected" : "Ended",
    };
    const normal = !reason || reason.code === "SESSION_ENDED" || reason.code === "DISPOSED";
    this.showState(state, texts[state], state === "ended" && !normal);
    if (state === "waiting") this.countDown(retryInMs ?? 0);
    this.timeline.note(texts[state].toLowerCase() + (reason ? `: ${reason.message}` : ""), reason && { code: reason.code, ...reason.context }, state);
    if (state === "connected") this.showWaiting(state, this.waitsFor);
    if (state !== "ended") return;
    this.waiting.clear();
    this.timeline.showUnclaimed(false);
    void this.history.save();
    if (!normal) this.showError(reason);
    else if (reason) this.chat.note("The session has ended. Press Call or Chat to start another.");
  }

  /** Counts down to the next attempt to connect. Screen readers announce the state alone. */
  private countDown(ms: number): void {
    const end = Date.now() + ms;
    const seconds = make("span", { "aria-hidden": "true" });
    byId("state").append(seconds);
    const show = () => (seconds.textContent = ` in ${Math.max(0, Math.ceil((end - Date.now()) / 1000))} s`);
    this.countdown = setInterval(show, 250);
    show();
  }

  /** Shows the service's error message with status, code and request ID. */
  private showError(error: unknown): void {
    const { message, code, context } = error instanceof TelapiError ? error : new TelapiError("UNREACHABLE", String(error));
    const { status, closeCode, requestId } = context;
    const details = [status && `HTTP ${status}`, closeCode && `close code ${closeCode}`, code, requestId && `request ${requestId}`].filter(Boolean).join(" · ");
    byId("rejection").replaceChildren(make("strong", {}, message), make("small", {}, details));
    byId("rejection").hidden = false;
  }

  /** Shows the state and enables the buttons that work in it. */
  private showState(state: string, text: string, failed = false): void {
    clearInterval(this.countdown);
    const focused = Object.keys(focusAfter).find((id) => id === document.activeElement?.id);
    byId("state").dataset.state = failed ? "failed" : state;
    byId("state").textContent = text;
    const live = state !== "idle" && state !== "ended";
    button("retry").hidden = state !== "waiting";
    button("open").disabled = button("text-chat").disabled = live;
    button("close").disabled = !live;
    button("cut").disabled = !live || state === "cut";
    button("resume").disabled = !["cut", "waiting", "offline"].includes(state);
    button("drop").disabled = state !== "connected";
    if (focused && (button(focused).disabled || button(focused).hidden)) [focusAfter[focused]!, "call"].map(button).find(({ disabled }) => !disabled)?.focus();
    for (const key of byId("keypad").querySelectorAll("button")) key.disabled = !live;
  }

  private keypadButton(digit: string): HTMLElement {
    const key = make("button", { type: "button" }, digit);
    key.onclick = () => this.call.sendDigits(digit) || void this.session?.send("browser_action", { type: "dtmf", digit });
    return key;
  }
}

setUpTheme();
setUpTabs();
Api.config().then(
  (config) => new Playground(config),
  (error: unknown) => (byId("state").textContent = `The service is unreachable: ${String(error)}`),
);
