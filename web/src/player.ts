import { make, timeOfDay } from "./dom.js";
import type { Recording } from "./recorder.js";

/** Shows recordings in an element, instead of those that it shows. They are loaded when the user plays them. */
export function showRecordings(into: HTMLElement, recordings: readonly Recording[], remove?: (recording: Recording) => void): void {
  for (const audio of into.querySelectorAll("audio")) unload(audio);
  into.replaceChildren(...recordings.map((recording) => row(recording, remove)));
}

function row(recording: Recording, remove?: (recording: Recording) => void): HTMLElement {
  const { startedAt, ms, blob } = recording;
  const name = `Call at ${timeOfDay(startedAt).slice(0, 8)}, ${Math.floor(ms / 60_000)}:${String(Math.floor(ms / 1_000) % 60).padStart(2, "0")}`;
  const play = make("button", { type: "button", "aria-label": `Play the recording: ${name}` }, "Play");
  play.onclick = () => {
    const audio = player(blob, name);
    play.replaceWith(audio);
    audio.focus();
    audio.play().catch(() => {}); // it was removed
  };
  const figure = make("figure", { class: "recording row" }, make("figcaption", {}, name), play);
  if (remove) {
    const button = make("button", { type: "button", "aria-label": `Delete the recording: ${name}` }, "Delete recording");
    button.onclick = () => remove(recording);
    figure.append(button);
  }
  return figure;
}

function player(blob: Blob, name: string): HTMLAudioElement {
  const audio = make("audio", { controls: "", "aria-label": `Recording: ${name}` });
  // A recording does not know its length until the browser has looked for its end.
  audio.onloadedmetadata = () => {
    if (audio.duration !== Infinity) return;
    audio.ondurationchange = () => {
      if (audio.duration === Infinity) return;
      audio.ondurationchange = null;
      audio.currentTime = 0;
    };
    audio.currentTime = 1e9;
  };
  audio.src = URL.createObjectURL(blob);
  return audio;
}

function unload(audio: HTMLAudioElement): void {
  const { src } = audio;
  audio.removeAttribute("src");
  audio.load(); // ends requests for the old one
  URL.revokeObjectURL(src);
}
