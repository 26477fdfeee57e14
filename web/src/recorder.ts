import type { Payload, Session } from "@telapi/sdk";
import { decodeAudio } from "../../sdk/js/src/voice/speaker.js"; // not part of the SDK's interface

/** A call: the caller on the left channel, the bot on the right one. */
export interface Recording {
  startedAt: number;
  ms: number;
  blob: Blob;
}

/** Is called with a recording, and whether it is complete. */
export type OnSaved = (recording: Recording, complete: boolean) => void;

const formats = ["audio/webm;codecs=opus", "audio/mp4"];
const bitsPerSecond = 32_000;
const saveMs = 5_000;
/** A longer call is not recorded to its end: the page opens traces of 16 MiB, and base64 needs a third more. */
const maxBytes = 8 * 1024 * 1024;
/** Delay with which the bot's audio frames are recorded, because they do not arrive evenly. */
const jitterSeconds = 0.06;
const telephoneRate = 8_000;

/** Records both sides of a call. */
export class Recorder {
  private readonly context = new AudioContext();
  private readonly sides = new ChannelMergerNode(this.context, { numberOfInputs: 2 });
  private readonly startedAt = Date.now();
  private readonly chunks: Blob[] = [];
  private readonly listeners: (() => void)[] = [];
  private readonly recorder: MediaRecorder;
  private playing: AudioBufferSourceNode[] = []; // the bot's frames that are not recorded yet
  private next = 0; // when the next one starts, by the context's clock

  /** Returns nothing if the browser cannot record. onSaved is called with everything so far, every few seconds and at the end. */
  static start(onSaved: OnSaved): Recorder | undefined {
    const format = globalThis.MediaRecorder && formats.find((format) => MediaRecorder.isTypeSupported(format));
    return format ? new Recorder(format, onSaved) : undefined;
  }

  private constructor(mimeType: string, onSaved: OnSaved) {
    const output = new MediaStreamAudioDestinationNode(this.context, { channelCount: 2 });
    this.sides.connect(output);
    this.recorder = new MediaRecorder(output.stream, { mimeType, audioBitsPerSecond: bitsPerSecond });
    const save = (complete: boolean) => {
      const blob = new Blob(this.chunks, { type: mimeType.replace(/;.*/, "") });
      if (blob.size) onSaved({ startedAt: this.startedAt, ms: Date.now() - this.startedAt, blob }, complete);
      if (blob.size > maxBytes) this.stop();
    };
    this.recorder.ondataavailable = ({ data }) => {
      this.chunks.push(data);
      if (this.recorder.state !== "inactive") save(false); // after stop, there may be more than one of these
    };
    this.recorder.onstop = () => {
      save(true);
      void this.context.close();
    };
    this.recorder.start(saveMs);
  }

  /** Records a stream on the side of the caller or the bot. */
  addStream(side: "caller" | "bot", stream: MediaStream): void {
    new MediaStreamAudioSourceNode(this.context, { mediaStream: stream }).connect(this.sides, 0, side === "caller" ? 0 : 1);
  }

  /** Records the session's audio frames on the side of the bot. */
  addFrames(session: Session): void {
    this.listeners.push(
      session.on("audio", (frame) => this.record(frame)),
      session.on("control", ({ command }) => command === "stop_playback" && this.flush()),
    );
  }

  stop(): void {
    for (const remove of this.listeners.splice(0)) remove();
    if (this.recorder.state !== "inactive") this.recorder.stop();
  }

  private record(frame: Payload): void {
    const samples = decodeAudio(frame);
    if (!samples.length) return;
    const buffer = new AudioBuffer({ length: samples.length, sampleRate: Number(frame.sampleRate) || telephoneRate });
    buffer.copyToChannel(samples, 0);
    const source = new AudioBufferSourceNode(this.context, { buffer });
    source.connect(this.sides, 0, 1);
    this.next = Math.max(this.next, this.context.currentTime + jitterSeconds);
    source.start(this.next);
    this.next += buffer.duration;
    this.playing.push(source);
    source.onended = () => (this.playing = this.playing.filter((other) => other !== source));
  }

  private flush(): void {
    for (const source of this.playing.splice(0)) source.stop();
    this.next = 0;
  }
}

/** A recording in a trace. */
export interface ExportedRecording {
  startedAt: number;
  ms: number;
  type: string;
  data: string; // base64
}

export async function exportRecording({ startedAt, ms, blob }: Recording): Promise<ExportedRecording> {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return { startedAt, ms, type: blob.type, data: btoa(text) };
}

export function importRecording({ startedAt, ms, type, data }: ExportedRecording): Recording {
  return { startedAt, ms, blob: new Blob([Uint8Array.from(atob(data), (character) => character.charCodeAt(0))], { type }) };
}
