import { TelapiError } from "../index.js";

/** The text of worklet.js, which the build of the SDK inserts. */
declare const workletSource: string | undefined;

/** Options of the helpers that use an AudioWorklet. */
export interface WorkletOptions {
  /**
   * The URL of `voice-worklet.js`, which is part of the package, on your server. Without it, the code is loaded from a `blob:` URL, which
   * a strict Content-Security-Policy does not allow.
   */
  workletUrl?: string | URL;
}

/** Opens an AudioContext with the SDK's worklets. */
export async function openContext({ workletUrl }: WorkletOptions): Promise<AudioContext> {
  const context = new AudioContext();
  const url = workletUrl ?? URL.createObjectURL(new Blob([workletSource!], { type: "text/javascript" }));
  try {
    // Without a secure context there are no worklets.
    if (!context.audioWorklet) throw new TelapiError("INSECURE_ORIGIN", insecureOrigin);
    await context.audioWorklet.addModule(url);
  } catch (cause) {
    void context.close();
    if (cause instanceof TelapiError) throw cause;
    const advice = workletUrl ? "Check that the URL returns voice-worklet.js." : "If the page has a Content-Security-Policy, serve voice-worklet.js yourself and pass its URL as workletUrl.";
    throw new TelapiError("WORKLET_FAILED", `The browser could not load the audio worklet from ${url}. ${advice}`, { cause });
  } finally {
    if (!workletUrl) URL.revokeObjectURL(String(url));
  }
  resume(context);
  return context;
}

/** Starts the context. If the page was not clicked yet, the browser waits for a click; then the promise of `resume` rejects if the context is closed before that. */
export function resume(context: AudioContext): void {
  context.resume().catch(() => {});
}

export const insecureOrigin = "Browsers allow calls only on pages served over HTTPS or from localhost. Open this page with https://.";

/** Measures the level of a signal. */
export class Meter {
  private readonly analyser: AnalyserNode;
  private readonly samples: Float32Array<ArrayBuffer>;

  constructor(readonly source: AudioNode) {
    this.analyser = new AnalyserNode(source.context, { fftSize: 2_048 });
    this.samples = new Float32Array(this.analyser.fftSize);
    source.connect(this.analyser);
  }

  /** The root mean square of the last 40 ms or so: 0 for silence, 1 at most. */
  get level(): number {
    this.analyser.getFloatTimeDomainData(this.samples);
    return Math.min(1, Math.sqrt(this.samples.reduce((sum, sample) => sum + sample * sample, 0) / this.samples.length));
  }
}
