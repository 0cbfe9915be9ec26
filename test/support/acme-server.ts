import { execFileSync } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { calculateJwkThumbprint, flattenedVerify, importJWK, type JWK } from 'jose';

interface OrderState {
  name: string;
  token: string;
  thumbprint: string;
  status: 'pending' | 'ready' | 'valid' | 'invalid';
  certificate: string;
}

/**
 * A small ACME server on loopback (RFC 8555): accounts, orders of one name, and the DNS challenge. It checks
 * signatures and nonces, and signs with an authority of its own.
 */
export async function startAcmeServer(options: {
  /** The content of the TXT records of a name. */
  recordsOf: (name: string) => readonly string[];
}) {
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-acme-'));
  const file = (name: string) => join(folder, name);
  openssl(
    ...['req', '-x509', '-batch', '-nodes', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1'],
    ...['-subj', '/CN=authority of the tests', '-days', '400'],
    ...['-keyout', file('ca.key'), '-out', file('ca.crt')],
  );
  let days = 90;
  const nonces = new Set<string>();
  const accounts = new Map<string, JWK>();
  const orders = new Map<string, OrderState>();
  let url = '';

  const orderBody = (id: string, { status, name, certificate }: OrderState) => ({
    status,
    identifiers: [{ type: 'dns', value: name }],
    authorizations: [`${url}/authorization/${id}`],
    finalize: `${url}/finalize/${id}`,
    ...(certificate && { certificate: `${url}/certificate/${id}` }),
  });
  const challengeBody = (id: string, { token, status }: OrderState) => ({
    type: 'dns-01',
    url: `${url}/challenge/${id}`,
    token,
    status: status === 'pending' || status === 'invalid' ? status : 'valid',
  });

  /** The content of a signed request, and the thumbprint of the key that signed it. */
  async function verified(request: IncomingMessage) {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const jws = JSON.parse(Buffer.concat(chunks).toString()) as Parameters<typeof flattenedVerify>[0];
    const head = JSON.parse(Buffer.from(jws.protected ?? '', 'base64url').toString()) as {
      jwk?: JWK;
      kid?: string;
      nonce: string;
      url: string;
    };
    const jwk = head.jwk ?? accounts.get(head.kid ?? '');
    if (!jwk || head.url !== url + request.url || !nonces.delete(head.nonce))
      throw new Error('unknown key, wrong address or used nonce');
    const { payload } = await flattenedVerify(jws, await importJWK(jwk, 'ES256'));
    const text = Buffer.from(payload).toString();
    return { body: text === '' ? {} : JSON.parse(text), jwk, thumbprint: await calculateJwkThumbprint(jwk) };
  }

  function sign(csr: string): string {
    writeFileSync(file('csr.der'), Buffer.from(csr, 'base64url'));
    openssl(
      ...['x509', '-req', '-inform', 'DER', '-in', file('csr.der'), '-copy_extensions', 'copy'],
      ...[
        '-CA',
        file('ca.crt'),
        '-CAkey',
        file('ca.key'),
        '-set_serial',
        `0x${randomUUID().replaceAll('-', '')}`,
      ],
      ...['-days', String(days), '-out', file('leaf.crt')],
    );
    return readFileSync(file('leaf.crt'), 'utf8') + readFileSync(file('ca.crt'), 'utf8');
  }

  async function respond(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const nonce = randomUUID();
    nonces.add(nonce);
    response.setHeader('Replay-Nonce', nonce);
    const [, path = '', id = ''] = (request.url ?? '').split('/');
    if (path === 'directory') {
      const names = { newNonce: 'nonce', newAccount: 'account', newOrder: 'order' };
      const entries = Object.entries(names).map(([name, to]) => [name, `${url}/${to}`]);
      return send(response, 200, Object.fromEntries(entries));
    }
    if (path === 'nonce') return void response.writeHead(200).end();
    const { body, jwk, thumbprint } = await verified(request);
    if (path === 'account') {
      const location = `${url}/account/${thumbprint}`;
      accounts.set(location, jwk);
      response.setHeader('Location', location);
      return send(response, 201, { status: 'valid' });
    }
    if (path === 'order' && id === '') {
      const [{ value: name }] = body.identifiers as [{ value: string }];
      const made = randomUUID();
      const order: OrderState = { name, token: randomUUID(), thumbprint, status: 'pending', certificate: '' };
      orders.set(made, order);
      response.setHeader('Location', `${url}/order/${made}`);
      return send(response, 201, orderBody(made, order));
    }
    const order = orders.get(id);
    if (!order || order.thumbprint !== thumbprint) return send(response, 404, { type: 'malformed' });
    if (path === 'order') return send(response, 200, orderBody(id, order));
    if (path === 'authorization')
      return send(response, 200, {
        status: challengeBody(id, order).status,
        identifier: { type: 'dns', value: order.name },
        challenges: [challengeBody(id, order)],
      });
    if (path === 'challenge') {
      const proof = createHash('sha256').update(`${order.token}.${thumbprint}`).digest('base64url');
      const isProved = options.recordsOf(`_acme-challenge.${order.name}`).includes(proof);
      order.status = isProved ? 'ready' : 'invalid';
      return send(response, 200, challengeBody(id, order));
    }
    if (path === 'finalize' && order.status === 'ready') {
      order.certificate = sign(body.csr);
      order.status = 'valid';
      return send(response, 200, orderBody(id, order));
    }
    if (path === 'certificate' && order.certificate)
      return void response
        .setHeader('content-type', 'application/pem-certificate-chain')
        .end(order.certificate);
    send(response, 403, {
      type: 'urn:ietf:params:acme:error:orderNotReady',
      detail: 'The order is not ready.',
    });
  }

  const server = createServer((request, response) => {
    respond(request, response).catch((error: Error) =>
      send(response, 400, { type: 'urn:ietf:params:acme:error:malformed', detail: error.message }),
    );
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    directory: `${url}/directory`,
    authority: readFileSync(file('ca.crt'), 'utf8'),
    /** Names for which certificates were made. */
    issued: () => [...orders.values()].filter(({ certificate }) => certificate).map(({ name }) => name),
    /** Days for which the next certificates are valid. */
    lasting(wanted: number) {
      days = wanted;
    },
    async stop() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      rmSync(folder, { recursive: true });
    },
  };
}

const openssl = (...words: string[]) => execFileSync('openssl', words, { stdio: 'ignore' });

function send(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}
