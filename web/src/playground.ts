import { connect, type Session, type StateChange, TelapiError, type TokenResponse } from "@telapi/sdk";
import { Api, type Endpoint, type PlaygroundConfig, type TokenRequest, type TimelineEvent } from "./api.js";
import { Chat } from "./chat.js";
import { byId, make } from "./dom.js";
import { CallPanel, showSpeechNotice, voiceModes } from "./call.js";
import { setUpTabs, setUpTheme } from "./layout.js";
import { SimulatedWebSocket } from "./network.js";
import { PolicyPanel } from "./policy.js";
import { showRates } from "./rates.js";
import { type SavedSession, saveWhenLeft, takeSavedSession } from "./reload.js";
import { ResiliencePanel } from "./resilience.js";
import { Timeline } from "./timeline.js";
import { TracePanel } from "./trace-panel.js";
import { UsagePanel } from "./usage.js";
import { WaitingLine } from "./waiting.js";
import { Workbench } from "./workbench.js";

const endpoint = byId<HTMLSelectElement>("endpoint");
const key = byId<HTMLInputElement>("key");
const button = (id: string) => byId<HTMLButtonElement>(id);

/** Which button gets the focus when the focused one is disabled. */
const focusAfter: Record<string, string> = { open: "text", close: "open", cut: "resume", resume: "cut", drop: "resume" };

/** The page: one session at a time, and its panels. */
class Playground {
  private readonly timeline = new Timeline();
  private readonly call = new CallPanel(() => this.open(true));
  private readonly usage = new UsagePanel();
  private readonly waiting = new WaitingLine();
  private readonly policy = new PolicyPanel();
  private readonly workbench = new Workbench(this.policy, (title, receipt) => this.timeline.note(title, receipt));
  private readonly chat: Chat;
  private readonly resilience: ResiliencePanel;
  private endpoints: Endpoint[] = [];
  private api = new Api("");
  private session: Session | undefined;
  private token: TokenResponse | undefined; // of the session
  private feed = new AbortController(); // ends the event feed
  private countdown: ReturnType<typeof setInterval> | undefined;

  constructor(private readonly config: PlaygroundConfig) {
    this.chat = new Chat(config.phrases);
    this.resilience = new ResiliencePanel(config.instances ?? 0, (title) => this.timeline.note(title));
    if (!config.instances) showRates(); // each instance has its own
    new TracePanel(this.timeline);
    key.value = config.apiKey ?? "";
    showSpeechNotice(config.speechProviders);
    byId<HTMLDetailsElement>("more").open = !config.apiKey;
    key.onchange = () => void this.loadEndpoints();
    endpoint.onchange = () => this.showEndpoint();
    byId("connect").onsubmit = (event) => {
      event.preventDefault();
      this.open();
    };
    button("close").onclick = () => void this.close();
    button("cut").onclick = () => this.session?.cut();
    button("resume").onclick = () => this.session?.resume();
    button("drop").onclick = () => void this.dropOnServer();
    byId("keypad").append(...[..."123456789*0#"].map((digit) => this.keypadButton(digit)));
    this.showState("idle", "Not connected");
    void this.loadEndpoints();
    const saved = takeSavedSession();
    if (saved) this.resume(saved);
    saveWhenLeft(() => this.saved());
  }

  /** Loads the configured endpoints, or those of the API key's team. */
  private async loadEndpoints(): Promise<void> {
    this.api = new Api(key.value);
    this.resilience.use(this.api);
    try {
      this.endpoints = this.config.endpoints.length ? this.config.endpoints : key.value ? await this.api.endpoints() : [];
      endpoint.replaceChildren(...this.endpoints.map(({ id, name }) => make("option", { value: id }, name)));
      this.showEndpoint();
      if (this.endpoints.length && key.value) this.usage.start(this.api);
    } catch (error) {
      this.showError(error);
    }
  }

  /** Shows the modes and the policy of the selected endpoint. */
  private showEndpoint(): void {
    if (endpoint.value && key.value) {
      const { api } = this;
      void this.policy.load(api, endpoint.value).then((loaded) => loaded && this.workbench.use(api));
    }
    const modes = this.endpoints.find(({ id }) => id === endpoint.value)?.modes ?? [];
    const preferred = modes.includes("chat") ? "chat" : modes[0];
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
  private resume({ token, position, messages, inCall }: SavedSession): void {
    this.api = new Api(key.value, this.timeline);
    this.token = token;
    this.start(connect({ token, ...(position ? { from: position } : {}), WebSocket: SimulatedWebSocket }), (token as { mode?: string }).mode ?? "chat", true);
    this.chat.restore(messages);
    if (inCall) this.call.offerAgain();
  }

  /** Returns the session for a reload of the page, or nothing if there is none or it has ended. */
  private saved(): SavedSession | undefined {
    const { session, token } = this;
    if (!session || !token || session.state === "ended") return undefined;
    return { token, messages: this.chat.save(), inCall: this.call.active, ...(session.position ? { position: session.position } : {}) };
  }

  /** Shows a session in all panels. */
  private start(session: Session, mode: string, resumed = false): void {
    const { api } = this;
    this.session?.dispose();
    this.feed.abort();
    this.feed = new AbortController();
    byId("refusal").hidden = true;
    this.timeline.start();
    this.usage.start(api);

    this.session = session;
    session.on("frame", (frame) => this.timeline.fromConnection(frame));
    session.on("refused", ({ error, final }) => this.timeline.note(`rejected: ${error.message}`, { code: error.code, ...error.context, final }));
    session.on("state", (change) => this.onStateChange(change));
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
      this.waiting.addEvent(event);
    };
    this.api.streamEvents(session.sessionId!, () => session.state === "ended", this.feed.signal, onEvent).catch((error: unknown) => this.showError(error));
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
    button("open").focus();
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
    if (state !== "ended") return;
    this.waiting.clear();
    if (!normal) this.showError(reason);
    else if (reason) this.chat.note("The session has ended. Connect to start another.");
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
    byId("refusal").replaceChildren(make("strong", {}, message), make("small", {}, details));
    byId("refusal").hidden = false;
  }

  /** Shows the state and enables the buttons that work in it. */
  private showState(state: string, text: string, failed = false): void {
    clearInterval(this.countdown);
    const focused = Object.keys(focusAfter).find((id) => id === document.activeElement?.id);
    byId("state").dataset.state = failed ? "failed" : state;
    byId("state").textContent = text;
    const live = state !== "idle" && state !== "ended";
    button("open").disabled = live;
    button("close").disabled = !live;
    button("cut").disabled = !live || state === "cut";
    button("resume").disabled = !["cut", "waiting", "offline"].includes(state);
    button("drop").disabled = state !== "connected";
    if (focused && button(focused).disabled) [focusAfter[focused]!, "open"].map(button).find(({ disabled }) => !disabled)?.focus();
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
