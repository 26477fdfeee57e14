import { type Session, TelapiError } from "@telapi/sdk";
import { callWebRtc, type Microphone, playAudio, sendMicrophone, type Speaker, type WebRtcCall } from "@telapi/sdk/voice";
import { Devices } from "./devices.js";
import { byId, make } from "./dom.js";
import { showTurnsAfterCall } from "./layout.js";
import { Levels } from "./levels.js";
import { type OnSaved, Recorder } from "./recorder.js";

const workletUrl = "voice-worklet.js";
const button = (id: string) => byId<HTMLButtonElement>(id);
/** The modes in which the caller can speak, the preferred one first. */
export const voiceModes = ["webrtc", "audio"];

/** The call panel: microphone, levels, mute and hang up. It plays the bot's speech in every mode. */
export class CallPanel {
  private readonly levels = new Levels();
  private readonly devices = new Devices((read) => this.showTest(read), () => this.useSpeaker(), (error) => this.explain(error));
  private testing = false; // the level of the microphone is shown before a call
  private silenced = false; // the bot's speech is not played
  private session: Session | undefined;
  private mode = "";
  private speaker: Speaker | undefined; // of `audio` frames
  private microphone: Microphone | undefined; // as `audio` frames
  private webrtc: WebRtcCall | undefined;
  private attempt: AbortController | undefined; // cancels a call that is not connected yet
  private connectedAt = 0;
  private recorder: Recorder | undefined;
  private interruptions = 0; // of the bot, by the caller

  /** Takes a function that opens a session in a mode of voiceModes, and one that stores a recording. */
  constructor(openSession: () => void, private readonly onRecorded: (sessionId: string, ...saved: Parameters<OnSaved>) => void) {
    button("call").onclick = () => {
      if (!this.canCall) openSession();
      if (this.canCall) void this.start();
      else this.explain(new TelapiError("NO_VOICE_MODE", "This endpoint has no mode for calls. Add webrtc or audio to its modes."));
    };
    button("mute").onclick = () => this.mute(button("mute").ariaPressed !== "true");
    button("silence").onclick = () => {
      this.silenced = !this.silenced;
      button("silence").textContent = this.silenced ? "Turn sound on" : "Turn sound off";
      this.setVolume();
    };
    button("hangup").onclick = () => this.hangUp();
    setInterval(() => this.showDuration(), 1_000);
    this.update();
  }

  /** Shows a new session. Must be called in a click handler: browsers block sound before that. */
  show(session: Session, mode: string): void {
    this.hangUp();
    this.session = session;
    this.mode = mode;
    this.speaker = undefined;
    this.explain();
    if (mode !== "webrtc") void this.openSpeaker(session);
    session.on("control", ({ command }) => command === "stop_playback" && this.showInterruption());
    session.on("state", () => this.update());
    this.update("");
  }

  /** Whether a call is connected or being connected. */
  get active(): boolean {
    return !!(this.attempt ?? this.webrtc ?? this.microphone);
  }

  /** Offers to call again after a reload. Without a click, browsers block sound. */
  offerAgain(): void {
    this.update("The reload ended the call. Press Call to go on talking.");
    button("call").focus();
  }

  /** Sends digits in the call. Returns false if they have to be sent as a message. */
  sendDigits(digits: string): boolean {
    return this.webrtc?.sendDigits(digits) ?? false;
  }

  private setVolume(): void {
    for (const output of [this.speaker, this.webrtc]) if (output) output.volume = this.silenced ? 0 : 1;
  }

  /** Whether a call can start in the session. */
  private get canCall(): boolean {
    return !!this.session && this.session.state !== "ended" && voiceModes.includes(this.mode);
  }

  private async start(isRetry = false): Promise<void> {
    this.devices.stop();
    const session = this.session!;
    const attempt = (this.attempt = new AbortController());
    const { signal } = attempt;
    this.explain();
    this.update("Calling… Allow the microphone if the browser asks.");
    try {
      if (this.mode === "webrtc") {
        const call = await callWebRtc(session, { signal, constraints: this.devices.constraints });
        this.webrtc = call;
        call.connection.addEventListener("connectionstatechange", () => this.showDuration());
        void call.ended.then((reason) => this.webrtc === call && this.onEnded(reason, isRetry));
      } else {
        const microphone = await sendMicrophone(session, { signal, workletUrl, constraints: this.devices.constraints });
        this.microphone = microphone;
        session.on("state", ({ state }) => state === "ended" && this.microphone === microphone && this.hangUp());
      }
      this.connectedAt = Date.now();
      this.interruptions = 0;
      this.record(session);
      this.levels.start(() => [this.webrtc?.microphoneLevel ?? this.microphone?.level ?? 0, this.webrtc?.speakerLevel ?? this.speaker?.level ?? 0]);
      this.mute(false);
      this.setVolume();
      this.useSpeaker();
      void this.devices.list(); // their names are known now
    } catch (error) {
      if (signal.aborted) return; // hung up
      if (session.state !== "ended") this.explain(error); // otherwise the page shows why
      this.attempt = undefined;
      this.hangUp();
    } finally {
      if (this.attempt === attempt) this.attempt = undefined;
      this.update();
    }
  }

  /** Records both sides until the call ends. */
  private record(session: Session): void {
    const recorder = byId<HTMLInputElement>("record").checked ? Recorder.start((...saved) => this.onRecorded(session.sessionId!, ...saved)) : undefined;
    this.recorder = recorder;
    recorder?.addStream("caller", (this.webrtc ?? this.microphone)!.stream);
    if (this.webrtc) recorder?.addStream("bot", new MediaStream(this.webrtc.connection.getReceivers().map(({ track }) => track)));
    else recorder?.addFrames(session);
  }

  private async openSpeaker(session: Session): Promise<void> {
    try {
      const speaker = await playAudio(session, { workletUrl });
      if (this.session !== session) return speaker.stop();
      this.speaker = speaker;
      this.setVolume();
      this.useSpeaker();
      if (!this.microphone) this.levels.start(() => [0, speaker.level]);
    } catch (error) {
      this.explain(error);
    }
  }

  private onEnded(reason: TelapiError | undefined, isRetry: boolean): void {
    this.hangUp();
    const { retry } = (reason?.context.details ?? {}) as { retry?: boolean };
    if (retry && !isRetry) void this.start(true);
    else if (reason && this.session!.state !== "ended") this.explain(reason);
  }

  /** Ends the call. The session continues. */
  private hangUp(): void {
    const text = this.connectedAt ? "The call has ended." : this.attempt ? "The call was cancelled." : "";
    this.attempt?.abort();
    this.attempt = undefined;
    this.recorder?.stop();
    this.webrtc?.end();
    this.microphone?.stop();
    this.webrtc = this.microphone = this.recorder = undefined;
    this.mute(false);
    if (!this.speaker) this.levels.stop();
    if (this.connectedAt) showTurnsAfterCall();
    this.connectedAt = 0;
    this.update(text);
  }

  /** Plays on the chosen speaker, if the browser can. */
  private useSpeaker(): void {
    for (const output of [this.speaker, this.webrtc]) output?.setDevice(this.devices.speakerId).catch((error: unknown) => this.explain(error));
  }

  /** Shows the level of the microphone before a call, until it is called without a function. */
  private showTest(read?: () => number): void {
    this.testing = !!read;
    if (read) this.levels.start(() => [read(), 0]);
    else if (this.speaker) this.levels.start(() => [0, this.speaker?.level ?? 0]);
    else this.levels.stop();
    this.update();
  }

  private mute(muted: boolean): void {
    button("mute").ariaPressed = String(muted);
    byId("you").textContent = muted ? "You, muted" : "You";
    const microphone = this.webrtc ?? this.microphone;
    if (microphone) microphone.muted = muted;
    this.showDuration();
  }

  /** Explains an error and what to do. Without one, hides the explanation. */
  private explain(error?: unknown): void {
    const notice = byId("call-error");
    notice.hidden = !error;
    if (!error) return;
    const { message, code } = error instanceof TelapiError ? error : new TelapiError("CALL_FAILED", `The call failed: ${String(error)}`);
    notice.replaceChildren(make("strong", {}, message), make("span", {}, "You can go on without a call: type below."), make("small", {}, code));
  }

  /** Shows that the runtime stopped playback, if the caller has just spoken. A message stops it too. */
  private showInterruption(): void {
    if (!this.connectedAt || !this.levels.mark()) return;
    this.interruptions++;
    byId("interruption").replaceChildren(make("span", {}, `You interrupted the bot ${this.interruptions > 1 ? `${this.interruptions} times` : "once"}.`)); // a new element fades anew
  }

  private showDuration(): void {
    if (!this.connectedAt) return;
    const seconds = Math.floor((Date.now() - this.connectedAt) / 1_000);
    byId("call-state").textContent = this.lineIsUp ? `In a call, ${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}${button("mute").ariaPressed === "true" ? ", muted" : ""}` : "The line is interrupted. The call continues if it comes back.";
  }

  /** Whether sound can pass: over WebRTC, or else over the session's connection. */
  private get lineIsUp(): boolean {
    return this.webrtc ? this.webrtc.connection.connectionState === "connected" : this.session?.state === "connected";
  }

  /** Shows the state and enables the buttons that work in it. */
  private update(text?: string): void {
    if (text !== undefined) byId("call-state").textContent = text;
    if (!this.connectedAt) byId("interruption").textContent = "";
    this.showDuration();
    const { active } = this;
    const open = !!this.session && this.session.state !== "ended";
    const focused = document.activeElement;
    if (!open && !this.testing) this.levels.stop();
    button("call").disabled = active || (open && !this.canCall);
    button("hangup").disabled = !active;
    button("mute").disabled = !(this.webrtc ?? this.microphone);
    byId("call-panel").dataset.active = String(active || this.testing || (open && this.mode === "audio"));
    const forChat = open && !voiceModes.includes(this.mode); // the session has sound, but no calls
    button("mute").hidden = button("hangup").hidden = forChat;
    byId("devices").hidden = active || forChat;
    if (focused === button("call") && active) button("hangup").focus();
    if (focused === button("hangup") && !active) button("call").focus();
  }
}

/** Says that speech is a placeholder if the service has no provider with a voice. */
export function showSpeechNotice(providers: string[] | undefined): void {
  byId("speech-notice").hidden = !providers?.length || providers.some((name) => name !== "tone");
}
