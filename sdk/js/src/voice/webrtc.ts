import { type Payload, type Session, TelapiError } from "../index.js";
import { uuid } from "../messages.js";
import { Meter, resume } from "./context.js";
import { type MicrophoneOptions, openMicrophone, stop } from "./microphone.js";

/** Options of `callWebRtc`. */
export interface WebRtcOptions extends MicrophoneOptions {
  /** The ICE servers. By default those of the session's token response. */
  iceServers?: RTCIceServer[];
  /** How long to wait for the connection (default 30 s). */
  timeoutMs?: number;
}

/** A WebRTC call between this page and the runtime. It continues while the session reconnects. */
export class WebRtcCall {
  /** Resolves when the call has ended: with the reason if it was lost, with undefined if the page or the runtime ended it. */
  readonly ended: Promise<TelapiError | undefined>;
  private readonly callId = uuid();
  private readonly context = new AudioContext(); // for the meters
  private readonly audio = new Audio();
  private readonly microphone: Meter;
  private readonly sender: RTCRtpSender;
  private speaker: Meter | undefined;
  private readonly removeListeners: (() => void)[];
  private open = true;
  private settle!: (reason?: TelapiError) => void;
  private remote = Promise.resolve(); // handles the runtime's messages one after the other

  /** @internal */
  constructor(
    private readonly session: Session,
    /** The microphone's stream. */
    readonly stream: MediaStream,
    /** The connection, for statistics. */
    readonly connection: RTCPeerConnection,
  ) {
    this.ended = new Promise((done) => (this.settle = done));
    this.microphone = new Meter(new MediaStreamAudioSourceNode(this.context, { mediaStream: stream }));
    const transceiver = connection.addTransceiver(stream.getAudioTracks()[0]!, { streams: [stream] });
    this.sender = transceiver.sender;
    transceiver.setCodecPreferences(alawFirst(RTCRtpReceiver.getCapabilities("audio")?.codecs ?? []));
    connection.ontrack = ({ track, streams }) => this.play(streams[0] ?? new MediaStream([track]));
    connection.onicecandidate = ({ candidate }) => this.signal("candidate", { candidate: candidate?.toJSON() ?? null });
    connection.addEventListener("connectionstatechange", () => {
      if (connection.connectionState === "failed") this.finish(new TelapiError("CALL_LOST", "The connection to the runtime was lost."));
    });
    this.removeListeners = [
      session.on("control", (payload) => this.receive(payload)),
      session.on("state", ({ state, reason }) => state === "ended" && this.finish(reason)),
    ];
    resume(this.context);
  }

  /** The level of the microphone: 0 for silence, 1 at most. */
  get microphoneLevel(): number {
    return this.microphone.level;
  }

  /** The level of the runtime's audio, before the volume is applied: 0 for silence, 1 at most. */
  get speakerLevel(): number {
    return this.speaker?.level ?? 0;
  }

  /** Whether silence is sent instead of the microphone. */
  get muted(): boolean {
    return this.stream.getAudioTracks().every(({ enabled }) => !enabled);
  }

  set muted(muted: boolean) {
    for (const track of this.stream.getAudioTracks()) track.enabled = !muted;
  }

  /** The volume of the runtime's audio, from 0 to 1. */
  get volume(): number {
    return this.audio.volume;
  }

  set volume(volume: number) {
    this.audio.volume = volume;
  }

  /** Plays on the output device with this ID; an empty one is the default. Rejects if the browser cannot choose it. */
  async setDevice(deviceId: string): Promise<void> {
    if (deviceId || "setSinkId" in this.audio) await this.audio.setSinkId(deviceId);
  }

  /** Sends digits (0–9, *, #, A–D) as telephone events. Returns false if the connection does not support them. */
  sendDigits(digits: string): boolean {
    const { dtmf } = this.sender;
    if (!dtmf?.canInsertDTMF) return false;
    dtmf.insertDTMF(dtmf.toneBuffer + digits);
    return true;
  }

  /** Ends the call and closes the microphone. The session continues. */
  end(): void {
    if (this.finish()) this.signal("end");
  }

  [Symbol.dispose](): void {
    this.end();
  }

  /** @internal Sends the offer when the session is connected, and waits for the connection. */
  async connect({ iceServers, timeoutMs = 30_000, signal }: WebRtcOptions): Promise<void> {
    const { connection, session } = this;
    let stopWaiting = () => {};
    const connected = new Promise<void>((resolve, reject) => {
      const timeout = setTimeout(() => reject(new TelapiError("CALL_TIMEOUT", "The runtime did not answer the call in time. Check that it supports WebRTC.")), timeoutMs);
      const abort = () => reject(signal!.reason as Error);
      const onChange = () => connection.connectionState === "connected" && resolve();
      signal?.addEventListener("abort", abort);
      connection.addEventListener("connectionstatechange", onChange);
      stopWaiting = () => {
        clearTimeout(timeout);
        signal?.removeEventListener("abort", abort);
        connection.removeEventListener("connectionstatechange", onChange);
      };
      void this.ended.then((reason) => reject(reason ?? new TelapiError("CALL_ENDED", "The runtime ended the call.")));
    });
    try {
      await Promise.race([session.whenReady(), connected]);
      connection.setConfiguration({ iceServers: iceServers ?? session.iceServers });
      await connection.setLocalDescription();
      this.signal("offer", { sdp: connection.localDescription!.sdp });
      await connected;
    } catch (error) {
      this.end();
      throw error;
    } finally {
      stopWaiting();
    }
  }

  private signal(message: "offer" | "candidate" | "end", payload: Payload = {}): void {
    // Messages of the session are delivered in order, also after a reconnect.
    void this.session.send("control", { command: `webrtc_${message}`, callId: this.callId, ...payload });
  }

  private receive({ command, callId, sdp, candidate, reason, retry }: Payload): void {
    if (callId !== undefined && callId !== this.callId) return; // of an earlier call
    if (command === "webrtc_end") {
      this.finish(retry || reason !== "hangup" ? new TelapiError("CALL_LOST", String(reason ?? "The runtime ended the call."), { details: { retry: retry === true } }) : undefined);
      return;
    }
    this.remote = this.remote
      .then(async () => {
        if (command === "webrtc_answer") await this.connection.setRemoteDescription({ type: "answer", sdp: String(sdp) });
        if (command === "webrtc_candidate" && candidate) await this.connection.addIceCandidate(candidate as RTCIceCandidateInit);
      })
      .catch((cause: unknown) => {
        if (command === "webrtc_answer") this.finish(new TelapiError("CALL_LOST", `The runtime's answer is invalid: ${String(cause)}`, { cause }));
      }); // without one candidate, the others are tried
  }

  private play(stream: MediaStream): void {
    this.audio.srcObject = stream; // without it, Chromium does not decode the stream for the meter
    this.audio.play().catch(() => {}); // it was paused by the end of the call
    this.speaker = new Meter(new MediaStreamAudioSourceNode(this.context, { mediaStream: stream }));
  }

  /** Closes everything. Returns false if the call has already ended. */
  private finish(reason?: TelapiError): boolean {
    if (!this.open) return false;
    this.open = false;
    for (const remove of this.removeListeners) remove();
    this.connection.onicecandidate = null;
    this.connection.close();
    stop(this.stream);
    this.audio.srcObject = null;
    void this.context.close();
    this.settle(reason);
    return true;
  }
}

/** Calls the runtime with WebRTC and the microphone. Resolves when the connection is established. */
export async function callWebRtc(session: Session, options: WebRtcOptions = {}): Promise<WebRtcCall> {
  const stream = await openMicrophone(options);
  let call: WebRtcCall;
  try {
    call = new WebRtcCall(session, stream, new RTCPeerConnection());
  } catch (error) {
    stop(stream);
    throw error;
  }
  await call.connect(options);
  return call;
}

/** Moves G.711 A-law to the front: the runtime can send and record it without converting it. */
function alawFirst(codecs: RTCRtpCodec[]): RTCRtpCodec[] {
  const rank = ({ mimeType }: RTCRtpCodec) => (mimeType === "audio/PCMA" ? 0 : 1);
  return [...codecs].sort((a, b) => rank(a) - rank(b));
}
