import { once } from "node:events";
import { createServer } from "node:net";

/**
 * An unused port below the ephemeral range, so that no outgoing connection takes it before the server does. No other
 * test gets it before this process ends: the server may start later, and restart. The tests in Go use the ports below
 * these, because Node 20 pads the names of abstract sockets, and so does not see their reservations.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = 22_000 + Math.floor(Math.random() * 10_000);
    const reservation = createServer().listen(`\0telapi-test-port-${port}`);
    const server = createServer().listen(port, "127.0.0.1");
    try {
      await Promise.all([once(reservation, "listening"), once(server, "listening")]);
    } catch {
      reservation.close();
      server.close();
      continue; // taken
    }
    reservation.unref();
    await new Promise((done) => server.close(done));
    return port;
  }
}
