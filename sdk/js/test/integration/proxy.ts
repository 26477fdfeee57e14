import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";

/** A TCP proxy between SDK and service that simulates network failures. */
export class Proxy implements Disposable {
  private readonly sockets = new Set<Socket>();
  connections = 0;

  private constructor(private readonly server: Server) {}

  static async to(url: string): Promise<Proxy> {
    const { port, hostname } = new URL(url);
    const proxy = new Proxy(createServer((client) => {
      const upstream = connect(Number(port), hostname);
      proxy.connections++;
      for (const [from, to] of [[client, upstream], [upstream, client]] as const) {
        proxy.sockets.add(from);
        from.pipe(to);
        from.on("error", () => {});
        from.on("close", () => {
          proxy.sockets.delete(from);
          to.destroy();
        });
      }
    }));
    proxy.server.listen(0, "127.0.0.1");
    await once(proxy.server, "listening");
    return proxy;
  }

  /** The WebSocket URL of the service through this proxy. */
  get url(): string {
    return `ws://127.0.0.1:${(this.server.address() as AddressInfo).port}/ws/session`;
  }

  /** Closes all connections immediately. */
  cut(): void {
    for (const socket of this.sockets) socket.resetAndDestroy();
  }

  [Symbol.dispose](): void {
    this.server.close();
    this.cut();
  }
}
