import { openMicrophone } from "@telapi/sdk/voice";
import { byId, make } from "./dom.js";

/** The choice of microphone and speaker, and the level of the microphone before a call. */
export class Devices {
  private readonly microphone = byId<HTMLSelectElement>("microphone");
  private readonly speaker = byId<HTMLSelectElement>("speaker");
  private readonly test = byId<HTMLButtonElement>("test-microphone");
  private opened: { stream: MediaStream; context?: AudioContext } | undefined;
  private opening: AbortController | undefined; // of a microphone that is not open yet

  /** Takes functions that show the level while the microphone is tested, use another speaker, and explain an error. */
  constructor(private readonly showLevel: (read?: () => number) => void, onSpeaker: () => void, private readonly explain: (error?: unknown) => void) {
    byId("speaker-choice").hidden = !("setSinkId" in AudioContext.prototype);
    this.speaker.onchange = onSpeaker;
    this.microphone.onchange = () => {
      if (this.opened ?? this.opening) void this.start();
    };
    this.test.onclick = () => (this.opened ?? this.opening ? this.stop() : void this.start());
    navigator.mediaDevices?.addEventListener("devicechange", () => void this.list());
    void this.list();
  }

  /** Of the chosen microphone. */
  get constraints(): MediaTrackConstraints {
    return this.microphone.value ? { deviceId: { exact: this.microphone.value } } : {};
  }

  /** The ID of the chosen speaker; empty for the default one. */
  get speakerId(): string {
    return this.speaker.value;
  }

  /** Lists the devices. Browsers tell their names only after the user has allowed the microphone. */
  async list(): Promise<void> {
    const devices = await navigator.mediaDevices?.enumerateDevices().catch(() => []) ?? [];
    for (const [select, kind] of [[this.microphone, "audioinput"], [this.speaker, "audiooutput"]] as const) {
      const { value } = select;
      const known = devices.filter(({ kind: other, deviceId }) => other === kind && deviceId && deviceId !== "default");
      select.replaceChildren(make("option", { value: "" }, "System default"), ...known.map(({ deviceId, label }, index) => make("option", { value: deviceId }, label || `Device ${index + 1}`)));
      if (known.some(({ deviceId }) => deviceId === value)) select.value = value;
    }
  }

  /** Ends the test of the microphone. */
  stop(): void {
    this.opening?.abort();
    this.opening = undefined;
    if (!this.opened) return;
    for (const track of this.opened.stream.getTracks()) track.stop();
    void this.opened.context?.close();
    this.opened = undefined;
    this.test.ariaPressed = "false";
    this.showLevel();
  }

  private async start(): Promise<void> {
    this.stop();
    this.explain();
    const { signal } = (this.opening = new AbortController());
    try {
      const stream = await openMicrophone({ constraints: this.constraints, signal });
      this.opening = undefined;
      this.opened = { stream };
      const context = (this.opened.context = new AudioContext());
      const analyser = new AnalyserNode(context, { fftSize: 2_048 });
      new MediaStreamAudioSourceNode(context, { mediaStream: stream }).connect(analyser);
      const samples = new Float32Array(analyser.fftSize);
      this.test.ariaPressed = "true";
      this.showLevel(() => {
        analyser.getFloatTimeDomainData(samples);
        return Math.sqrt(samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length);
      });
      await this.list();
    } catch (error) {
      if (signal.aborted) return;
      this.stop();
      this.explain(error);
    }
  }
}
