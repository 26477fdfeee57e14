import type { TelapiError } from "../errors.js";

/** Values for one reader. */
export class Queue<Value> {
  private values: Value[] = [];
  private ended: { error: TelapiError | undefined } | undefined;
  private wake = () => {};

  push(value: Value): void {
    this.values.push(value);
    this.wake();
  }

  /** Removes and returns all values. */
  clear(): Value[] {
    return this.values.splice(0);
  }

  /** Lets the reader end after the remaining values, with an error if there is one. */
  end(error?: TelapiError): void {
    this.ended ??= { error };
    this.wake();
  }

  /** Waits for the next value. Returns undefined after `end`. */
  async next(): Promise<Value | undefined> {
    while (!this.values.length && !this.ended) await new Promise<void>((resolve) => (this.wake = resolve));
    if (!this.values.length && this.ended?.error) throw this.ended.error;
    return this.values.shift();
  }
}
