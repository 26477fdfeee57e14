import type { Session, TelapiError } from "@telapi/sdk";
import { byId, keepScrolledToEnd, make } from "./dom.js";
import { joinSentences } from "./streamed.js";

/** A message of the conversation, to show it again after a reload. */
export interface SavedMessage {
  sender: string; // or note
  text: string;
  state: string;
  label: string; // of the state
  messageId?: string;
  confirm?: string; // the type of a command that the user is asked about
  workItemId?: string; // of an answer that streams
  said?: string; // its complete sentences
}

/** The conversation panel: messages, their state, and the message box. */
export class Chat {
  private readonly list = byId("messages");
  private readonly text = byId<HTMLInputElement>("text");
  private session: Session | undefined;

  constructor(phrases: { say: string; does: string }[]) {
    byId("compose").onsubmit = (event) => {
      event.preventDefault();
      if (!this.text.value.trim()) return;
      this.send(this.text.value);
      this.text.value = "";
    };
    byId("phrases").append(
      ...phrases.map(({ say, does }) => {
        const chip = make("button", { type: "button", title: does }, say);
        chip.onclick = () => this.send(say);
        return chip;
      }),
    );
    const chat = byId("chat");
    let following = true; // the newest message is visible
    let height = chat.clientHeight;
    chat.onscroll = () => {
      if (chat.clientHeight !== height) return; // it scrolled before it was resized, which the observer is told next
      following = chat.scrollHeight - chat.scrollTop - chat.clientHeight < 40;
    };
    new ResizeObserver(() => {
      height = chat.clientHeight;
      if (following) chat.scrollTop = chat.scrollHeight;
    }).observe(chat); // what the session waits for, and a session that has ended, need room
    this.updateControls();
  }

  /** Shows the messages of a session. */
  show(session: Session): void {
    this.session = session;
    this.list.replaceChildren();
    session.on("chat", ({ text, from, spoken, workItemId, part, unfinished }) => {
      if (part) this.addPart(String(workItemId), String(text ?? ""), String(unfinished ?? ""), !!spoken);
      else this.add(from === "caller" ? "you" : from === "runtime" ? "runtime" : "bot", String(text ?? ""), spoken ? "spoken" : "");
    });
    session.on("action", (action) => {
      if (action.name === "confirm") this.askForConfirmation(action.command);
      else if (action.name === "transfer") this.note(`The call is transferred to ${String(action.target ?? "an agent")}.`);
    });
    session.on("status", ({ event, digits, value }) => {
      if (event === "answer_end") this.endAnswer(String(value));
      if (event === "dtmf") this.note(`Digits submitted: ${String(digits)}.`);
      if (event === "bot_timeout") this.note("The bot timed out.");
    });
    session.on("reconnect", ({ recovered, count }) =>
      this.note(recovered === false ? "Reconnected, but messages are missing: the history does not reach back far enough." : `Reconnected, ${count ? `${String(count)} missed ${count === 1 ? "message" : "messages"} replayed` : "nothing missed"}.`),
    );
    session.on("control", ({ command }) => {
      if (command === "disable_text_chat") this.note("The runtime disabled text chat.");
      if (command === "enable_text_chat") this.note("The runtime enabled text chat.");
      this.updateControls();
    });
    session.on("state", () => this.updateControls());
    this.updateControls();
  }

  /** Returns the shown messages. */
  save(): SavedMessage[] {
    return [...this.list.querySelectorAll<HTMLElement>(":scope > li")].map((item) => ({
      sender: item.className,
      text: (item.querySelector("p") ?? item).textContent,
      state: item.dataset.state ?? "",
      label: item.querySelector("small")?.textContent ?? "",
      ...(item.dataset.messageId ? { messageId: item.dataset.messageId } : {}),
      ...(item.dataset.confirm ? { confirm: item.dataset.confirm } : {}),
      ...(item.dataset.answer ? { workItemId: item.dataset.answer, said: item.dataset.said ?? "" } : {}),
    }));
  }

  /** Shows saved messages. Sends those again that were not acknowledged; the service ignores a message that it already has. */
  restore(messages: SavedMessage[]): void {
    for (const { sender, text, state, label, messageId, confirm, workItemId, said } of messages) {
      if (confirm) this.askForConfirmation({ type: confirm });
      else if (sender === "note") this.note(text);
      else if (sender === "you" && state === "sending…" && messageId) this.send(text, messageId);
      else {
        const item = this.add(sender, text, state);
        this.setState(item, state, label);
        if (workItemId) this.markAsOpen(item, workItemId, said ?? "");
      }
    }
  }

  /** Adds a note that is not part of the conversation. */
  note(text: string): void {
    this.append(make("li", { class: "note" }, text));
  }

  private send(text: string, messageId: string | undefined = crypto.randomUUID?.()): void { // undefined on a page without HTTPS
    const item = this.add("you", text, "sending…");
    if (messageId) item.dataset.messageId = messageId;
    this.session!.send("chat", { text }, messageId ? { messageId } : {}).then(
      () => this.setState(item, "acknowledged"),
      (error: TelapiError) => this.setState(item, "rejected", `${error.code}: ${error.message}`),
    );
  }

  private setState(item: HTMLElement, state: string, text = state): void {
    item.dataset.state = state;
    item.querySelector("small")!.textContent = text;
  }

  /** Asks the user to confirm a command of the bot. */
  private askForConfirmation(command: unknown): void {
    const type = (command as { type?: string } | undefined)?.type ?? "command";
    const item = make("li", { class: "note", "data-confirm": type }, `Do you agree to a ${type}? `);
    for (const [label, confirmed, done] of [["Confirm", true, "Confirmed"], ["Decline", false, "Declined"]] as const) {
      const button = make("button", { type: "button" }, label);
      button.onclick = () => {
        delete item.dataset.confirm;
        item.textContent = `${done}: ${type}.`;
        this.session!.send("action_result", { name: "confirm", confirmed }).catch((error: TelapiError) => (item.textContent = `Not sent: ${error.message}`));
      };
      item.append(button);
    }
    this.append(item);
  }

  private add(sender: string, text: string, state: string): HTMLElement {
    const item = make("li", { class: sender, "data-state": state }, make("b", {}, sender), make("p", { dir: "auto" }, text), make("small", {}, state));
    this.append(item);
    return item;
  }

  /** Adds a sentence to the message of an answer that streams, and shows the start of the next one. */
  private addPart(workItemId: string, sentence: string, unfinished: string, spoken: boolean): void {
    keepScrolledToEnd(byId("chat"), () => {
      const item = this.answer(workItemId) ?? this.add("bot", "", "");
      this.markAsOpen(item, workItemId, joinSentences(item.dataset.said ?? "", sentence));
      item.querySelector("p")!.textContent = joinSentences(item.dataset.said!, unfinished);
      item.dataset.spoken = String(spoken);
      this.setState(item, "writing", "writing…");
    });
  }

  /** Marks the message of an answer that goes on. A screen reader waits for its end. */
  private markAsOpen(item: HTMLElement, workItemId: string, said: string): void {
    item.dataset.answer = workItemId;
    item.dataset.said = said;
    item.ariaBusy = "true";
  }

  private endAnswer(workItemId: string): void {
    const item = this.answer(workItemId);
    if (!item) return;
    delete item.dataset.answer;
    delete item.dataset.said;
    item.ariaBusy = null;
    this.setState(item, item.dataset.spoken === "true" ? "spoken" : "");
  }

  /** The message of an answer whose parts arrive. */
  private answer(workItemId: string): HTMLElement | undefined {
    return [...this.list.querySelectorAll<HTMLElement>("[data-answer]")].find(({ dataset }) => dataset.answer === workItemId);
  }

  private append(item: HTMLElement): void {
    keepScrolledToEnd(byId("chat"), () => this.list.append(item));
  }

  /** Enables the message box while the session accepts chat. Messages sent while disconnected are queued. */
  private updateControls(): void {
    const { session } = this;
    const open = !!session && session.state !== "ended";
    const enabled = open && session.textChat;
    this.text.placeholder = enabled ? "Type a message" : open ? "Text chat is disabled" : "Press Call or Chat to start";
    for (const control of document.querySelectorAll<HTMLButtonElement>("#phrases button, #text, #send")) control.disabled = !enabled;
  }
}
