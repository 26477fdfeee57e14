/** A callback to start from. CHANNEL stands for the ID of the session's channel. */
export interface Template {
  name: string;
  kind: "bot" | "llm" | "tool";
  body: unknown;
}

const bot = (name: string, content: object, more: object = {}): Template => ({
  name,
  kind: "bot",
  body: { conversation: { identifier: { id: "CHANNEL" } }, messages: { message: [{ content }] }, ...more },
});
const control = (name: string, event: string, value: object) => bot(name, { event: { custom: { name: event, value } } });

/** Templates for every kind: the examples of docs/providers.md. */
export const templates: Template[] = [
  bot("bot: text", { textMessage: { textPlain: "Your order is on its way." } }),
  bot("bot: HTML and a transfer", { textMessage: { textHtml: "<p>Your order is on its way.</p>" } }, { actions: [{ type: "transfer", target: "tel:+1900555" }] }),
  bot("bot: hang up", { textMessage: { textPlain: "Goodbye." } }, { actions: [{ type: "hangup" }] }),
  control("bot: control event hangup", "hangup", {
    hangupReason: "done", hangupSipHeaders: [{ name: "X-Outcome", value: "solved" }], botOperationResult: "success", botOperationData: { order: 4711 },
  }),
  control("bot: control event transfer", "transfer", {
    transferTarget: "tel:+4930123456", transferMethod: "sip_refer", transferReferOutcomeMode: "notify", transferSipHeaders: [{ name: "X-Queue", value: "sales" }],
  }),
  control("bot: control event handover", "handover", { transferMethod: "sip_bye", handoverReason: "the caller asked for a person" }),
  control("bot: control event config", "config", {
    sessionParams: {
      bargeIn: true, dtmfCollect: true, dtmfCollectMaxDigits: 4, dtmfCollectSubmitDigit: "#",
      sttProvider: "primary", sttRetries: 2, botNoInputTimeoutMs: 3000, botNoInputSpeech: "One moment.",
    },
  }),
  { name: "bot: nothing to say", kind: "bot", body: { conversation: { identifier: { id: "CHANNEL" } } } },
  { name: "llm: text", kind: "llm", body: { content: "Your order is on its way." } },
  { name: "llm: chat completion", kind: "llm", body: { choices: [{ message: { content: "Your order is on its way." } }] } },
  { name: "llm: hang up", kind: "llm", body: { content: "Goodbye.", commands: [{ type: "hangup" }] } },
  { name: "tool: result", kind: "tool", body: { result: "done" } },
  { name: "any: error", kind: "bot", body: { error: { code: "TIMEOUT", message: "The model did not answer." } } },
];
