import type { Page } from "playwright-core";
import { syllables, wav } from "../../sdk/js/test/wav.js";
import { audible, type Playground } from "./browser.js";

/** A second of speech. It can be repeated without a gap. */
const speech = wav(1, syllables).toString("base64");

/** Replaces the microphone of a page by one that speaks when a test wants it to. So a test neither waits for the sound of the browser's microphone nor misses it on a busy machine. */
export class Voice {
  private constructor(private readonly page: Page) {}

  static async replaceMicrophone(page: Page): Promise<Voice> {
    await page.evaluate((speech) => {
      let volume: GainNode | undefined;
      navigator.mediaDevices.getUserMedia = async () => {
        if (!volume) {
          const context = new AudioContext();
          volume = new GainNode(context, { gain: 0 });
          const buffer = await context.decodeAudioData(Uint8Array.from(atob(speech), (character) => character.charCodeAt(0)).buffer);
          const source = new AudioBufferSourceNode(context, { buffer, loop: true });
          source.connect(volume);
          source.start();
        }
        const microphone = new MediaStreamAudioDestinationNode(volume.context as AudioContext, { channelCount: 1 });
        volume.connect(microphone);
        return microphone.stream;
      };
      Object.assign(window, { speak: (speaks: boolean) => (volume!.gain.value = speaks ? 1 : 0) });
    }, speech);
    return new Voice(page);
  }

  /** Speaks until `silence`. */
  speak(): Promise<void> {
    return this.page.evaluate("void speak(true)");
  }

  silence(): Promise<void> {
    return this.page.evaluate("void speak(false)");
  }

  /** Speaks until the page and the runtime hear it for the first time. */
  async say(playground: Playground): Promise<void> {
    await this.speak();
    await this.page.waitForFunction((audible) => Number(document.getElementById("microphone-level")!.ariaValueNow) > audible, audible);
    await playground.timelineEvent("caller speaks").first().waitFor();
    await this.silence();
  }
}
