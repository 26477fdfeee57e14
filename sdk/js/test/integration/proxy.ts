import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";

/** A network that fails: TCP between SDK and service, cut at will. */
export class Proxy implements Disposable {
  private readonly lines = new Set<Socket>();
  connections = 0;

  private constructor(private readonly server: Server) {}

  static async to(url: string): Promise<Proxy> {
    const { port, hostname } = new URL(url);
    const proxy = new Proxy(createServer((near) => {
      const far = connect(Number(port), hostname);
      proxy.connections++;
      for (const [from, to] of [[near, far], [far, near]] as const) {
        proxy.lines.add(from);
        from.pipe(to);
        from.on("error", () => {});
        from.on("close", () => {
          proxy.lines.delete(from);
          to.destroy();
        });
      }
    }));
    proxy.server.listen(0, "127.0.0.1");
    await once(proxy.server, "listening");
    return proxy;
  }

  /** The socket's URL through this network. */
  get url(): string {
    return `ws://127.0.0.1:${(this.server.address() as AddressInfo).port}/ws/session`;
  }

  /** Closes all connections immediately. */
  cut(): void {
    for (const socket of this.lines) socket.resetAndDestroy();
  }

  /** Lets nothing through any more, without a sign. */
  freeze(): void {
    for (const socket of this.lines) socket.unpipe().pause();
  }

  [Symbol.dispose](): void {
    this.server.close();
    this.cut();
  }
}
