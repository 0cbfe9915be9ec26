import { createServer, request, type Server } from 'node:http';

/**
 * The front of a gateway, which states the address of the client, as Cloudflare does.
 * @param gateway host and port
 * @param seen the address of each client, as that of a NAT; by default the one from which it connects
 */
export const gatewayFront = (gateway: string, seen?: string): Server =>
  createServer((incoming, outgoing) => {
    const headers = { ...incoming.headers, 'cf-connecting-ip': seen ?? incoming.socket.remoteAddress };
    const passed = request(
      `http://${gateway}${incoming.url}`,
      { method: incoming.method, headers },
      (response) => {
        outgoing.writeHead(response.statusCode ?? 502, response.headers);
        response.pipe(outgoing);
      },
    );
    passed.on('error', () => outgoing.destroy());
    incoming.pipe(passed);
  });
