/** A problem of a JSON text, at an offset. */
export interface JsonProblem {
  at: number;
  message: string;
}

/** Checks a text for mistakes in its syntax. Finds all of them, as far as the text can still be read, and where each value starts. */
export function checkJson(text: string): { problems: JsonProblem[]; positions: Map<string, number> } {
  const reader = new Reader(text);
  reader.document();
  return reader;
}

/** The line and column of an offset, from 1. */
export function lineAndColumn(text: string, at: number): { line: number; column: number } {
  const before = text.slice(0, at).split("\n");
  return { line: before.length, column: before.at(-1)!.length + 1 };
}

class Reader {
  readonly problems: JsonProblem[] = [];
  readonly positions = new Map<string, number>(); // by JSON Pointer
  private at = 0;

  constructor(private readonly text: string) {}

  document(): void {
    this.value("");
    this.skipSpace();
    if (this.at < this.text.length) this.report(`unexpected ${this.found()} after the end`);
  }

  private report(message: string, at = this.at): void {
    if (this.problems.at(-1)?.at !== at) this.problems.push({ at, message }); // one mistake causes others at the same place
  }

  /** What is at the current place, for a message. */
  private found(): string {
    const [, word = ""] = /^([\w.+-]{1,20}|.)?/su.exec(this.text.slice(this.at)) ?? [];
    return word ? JSON.stringify(word) : "end of the text";
  }

  private skipSpace(): void {
    while (/[ \t\r\n]/.test(this.text[this.at] ?? "")) this.at++;
  }

  /** Skips what is at the current place if it is this character. */
  private take(character: string): boolean {
    this.skipSpace();
    if (this.text[this.at] !== character) return false;
    this.at++;
    return true;
  }

  private value(path: string): void {
    this.skipSpace();
    this.positions.set(path, this.at);
    if (this.take("{")) return this.members("}", (_) => this.member(path));
    if (this.take("[")) return this.members("]", (index) => this.value(`${path}/${index}`));
    if (this.text[this.at] === '"') return void this.string();
    const [literal] = /^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.+-])/.exec(this.text.slice(this.at)) ?? [];
    if (literal) this.at += literal.length;
    else this.skipInvalid("a value");
  }

  /** Reads members or elements up to the closing bracket. */
  private members(end: string, read: (index: number) => void): void {
    if (this.take(end)) return;
    for (let index = 0; this.at < this.text.length; index++) {
      const before = this.at;
      read(index);
      if (this.take(end)) return;
      if (this.take(",")) {
        this.skipSpace();
        if (this.text[this.at] !== end) continue;
        this.report(`unexpected "${end}" after the comma`);
        this.at++;
        return;
      }
      this.skipSpace();
      if (this.at >= this.text.length) break;
      this.report(`expected "," or "${end}" before ${this.found()}`);
      if (/[}\]]/.test(this.text[this.at]!)) return; // it closes something else
      if (this.at === before) this.at++;
    }
    this.report(`expected "${end}" before the end of the text`, this.text.length);
  }

  private member(path: string): void {
    this.skipSpace();
    if (this.text[this.at] !== '"') return this.skipInvalid("a name in double quotes");
    const name = this.string();
    if (!this.take(":")) this.report(`expected ":" before ${this.found()}`);
    this.value(`${path}/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`);
  }

  private string(): string {
    const [literal, end] = /^"(?:[^"\\\n]|\\.)*("?)/.exec(this.text.slice(this.at))!;
    const start = this.at;
    this.at += literal.length;
    try {
      if (end) return JSON.parse(literal) as string;
      this.report('expected the closing " of the text', start);
    } catch {
      this.report("invalid character or escape in the text", start);
    }
    return "";
  }

  /** Reports what is expected here, and goes on after it. */
  private skipInvalid(expected: string): void {
    this.report(`expected ${expected}, not ${this.found()}`);
    this.at += /^[^,\]}\n]*/.exec(this.text.slice(this.at))![0].length;
  }
}
