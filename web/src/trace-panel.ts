import { byId, download, placeBelow } from "./dom.js";
import { createTrace, maxTraceBytes, parseTrace, traceAsHtml } from "./export.js";
import type { Timeline } from "./timeline.js";

/** Exports the timeline as a file, and opens such a file again. */
export class TracePanel {
  private readonly menu = byId("trace-menu");
  private readonly file = byId<HTMLInputElement>("trace-file");
  private readonly panel = byId("timeline").closest("section")!;

  constructor(private readonly timeline: Timeline) {
    const opener = byId("trace-open");
    placeBelow(this.menu, opener);
    byId("export-json").onclick = () => this.export("json");
    byId("export-html").onclick = () => this.export("html");
    byId("import").onclick = () => this.file.click();
    this.file.onchange = () => void this.open(this.file.files?.[0]);
    byId("trace-close").onclick = () => {
      this.timeline.closeTrace();
      opener.focus();
    };
    this.panel.addEventListener("dragover", (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      this.panel.dataset.drop = "";
    });
    this.panel.addEventListener("dragleave", () => delete this.panel.dataset.drop);
    this.panel.addEventListener("drop", (event) => {
      delete this.panel.dataset.drop;
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      void this.open(event.dataTransfer.files[0]);
    });
  }

  private export(form: "json" | "html"): void {
    this.menu.hidePopover();
    const { sessionId, clockOffset, entries } = this.timeline.content();
    const trace = createTrace(sessionId, clockOffset, entries.map(({ event }) => event));
    const text = form === "json" ? JSON.stringify(trace, null, 1) : traceAsHtml(trace, entries.map(({ time }) => time));
    download(text, `telapi-trace-${sessionId.replace(/[^\w.-]/g, "_") || "empty"}.${form}`, form === "json" ? "application/json" : "text/html");
  }

  private async open(file: File | undefined): Promise<void> {
    this.menu.hidePopover();
    if (!file) return;
    this.file.value = ""; // so that the same file can be opened again
    try {
      if (file.size > maxTraceBytes) throw new Error(`The file has ${file.size} bytes. This page opens at most ${maxTraceBytes}.`);
      this.timeline.openTrace(parseTrace(await file.text()));
    } catch (error) {
      byId("trace-error").textContent = `${file.name}: ${error instanceof Error ? error.message : String(error)}`;
      byId("trace-error").hidden = false;
      return;
    }
    byId("trace-error").hidden = true;
  }
}
