type Listener = (...args: never[]) => void;

/** Listeners by event name. If one throws, the others are still called. */
export class Emitter<Events extends { [Name in keyof Events]: Listener }> {
  private readonly listeners = new Map<keyof Events, Set<Listener>>();

  on<Name extends keyof Events>(name: Name, listener: Events[Name]): () => void {
    const listeners = this.listeners.get(name) ?? new Set();
    this.listeners.set(name, listeners.add(listener));
    return () => void listeners.delete(listener);
  }

  has(name: keyof Events): boolean {
    return !!this.listeners.get(name)?.size;
  }

  emit<Name extends keyof Events>(name: Name, ...args: Parameters<Events[Name]>): void {
    for (const listener of [...(this.listeners.get(name) ?? [])]) {
      try {
        listener(...(args as never[]));
      } catch (error) {
        queueMicrotask(() => {
          throw error; // reported like any other uncaught error
        });
      }
    }
  }

  clear(): void {
    this.listeners.clear();
  }
}
