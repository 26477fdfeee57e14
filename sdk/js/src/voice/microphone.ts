import { type Session, TelapiError } from "../index.js";
import { encodeAlaw, telephoneRate } from "./alaw.js";
import { insecureOrigin, Meter, openContext, type WorkletOptions } from "./context.js";
import { Resampler } from "./resampler.js";

/** Options of `openMicrophone`. */
export interface MicrophoneOptions {
  /** Which microphone to open, and how. By default any, with echo cancellation, noise suppression and automatic gain. */
  constraints?: MediaTrackConstraints;
  /** Cancels the call: its promise rejects with the signal's reason, and the microphone is closed. */
  signal?: AbortSignal;
}

/** Errors of getUserMedia, by name. */
const causes: Record<string, [code: string, message: string]> = {
  NotAllowedError: ["MICROPHONE_DENIED", "The microphone is blocked for this page. Allow it in the browser's site settings, next to the address, then try again."],
  NotFoundError: ["MICROPHONE_NOT_FOUND", "No microphone was found. Connect one, or enable it in the system settings, then try again."],
  OverconstrainedError: ["MICROPHONE_NOT_FOUND", "No microphone has the requested properties. Choose another one, then try again."],
  NotReadableError: ["MICROPHONE_BUSY", "The microphone could not be opened. Close other programs that use it, then try again."],
};

/** Opens the microphone. Rejects with a TelapiError that tells the user what to do. Stop the tracks of the stream to close it. */
export async function openMicrophone({ constraints = {}, signal }: MicrophoneOptions = {}): Promise<MediaStream> {
  if (!navigator.mediaDevices) throw new TelapiError("INSECURE_ORIGIN", insecureOrigin);
  let stream: MediaStream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true, ...constraints } });
  } catch (cause) {
    const [code, message] = causes[(cause as DOMException).name] ?? ["MICROPHONE_FAILED", `The microphone could not be opened: ${String(cause)}`];
    throw new TelapiError(code, message, { cause });
  }
  if (signal?.aborted) stop(stream);
  signal?.throwIfAborted();
  return stream;
}

/** Stops the tracks of a stream. */
export function stop(stream: MediaStream): void {
  for (const track of stream.getTracks()) track.stop();
}

/** Number of samples in a frame: 20 ms. */
const frameSamples = telephoneRate / 50;

/** The microphone of a call. */
export class Microphone {
  private readonly meter: Meter;
  private readonly resampler: Resampler;
  private open = true;
  private samples: number[] = []; // not sent yet
  private sequence = 0;

  /** @internal */
  constructor(
    private readonly session: Session,
    private readonly context: AudioContext,
    /** The microphone's stream. */
    readonly stream: MediaStream,
  ) {
    const source = new MediaStreamAudioSourceNode(context, { mediaStream: stream });
    this.meter = new Meter(source);
    this.resampler = new Resampler(context.sampleRate, telephoneRate);
    const capture = new AudioWorkletNode(context, "telapi-capture", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
    capture.port.onmessage = ({ data }: MessageEvent<Float32Array>) => this.send(data);
    source.connect(capture);
  }

  /** The level: 0 for silence, 1 at most. */
  get level(): number {
    return this.meter.level;
  }

  /** Whether silence is sent instead of the microphone. */
  get muted(): boolean {
    return this.stream.getAudioTracks().every(({ enabled }) => !enabled);
  }

  set muted(muted: boolean) {
    for (const track of this.stream.getAudioTracks()) track.enabled = !muted;
  }

  /** Closes the microphone. */
  stop(): void {
    if (!this.open) return;
    this.open = false;
    stop(this.stream);
    void this.context.close();
  }

  [Symbol.dispose](): void {
    this.stop();
  }

  private send(samples: Float32Array): void {
    this.samples.push(...this.resampler.process(samples));
    while (this.samples.length >= frameSamples && this.open) {
      const bytes = encodeAlaw(Float32Array.from(this.samples.splice(0, frameSamples)));
      // The session drops audio while it is disconnected.
      this.session.sendAudio({ encoding: "alaw", sampleRate: telephoneRate, sequence: this.sequence++, data: btoa(String.fromCharCode(...bytes)) });
    }
  }
}

/** Sends the microphone as `audio` frames: 20 ms of A-law at 8 kHz each. Resolves when the microphone is open. */
export async function sendMicrophone(session: Session, options: MicrophoneOptions & WorkletOptions = {}): Promise<Microphone> {
  const stream = await openMicrophone(options);
  try {
    const context = await openContext(options);
    const microphone = new Microphone(session, context, stream);
    if (options.signal?.aborted || session.state === "ended") microphone.stop();
    options.signal?.throwIfAborted();
    if (session.state === "ended") throw session.reason;
    session.on("state", ({ state }) => state === "ended" && microphone.stop());
    return microphone;
  } catch (error) {
    stop(stream);
    throw error;
  }
}
