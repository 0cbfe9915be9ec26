import { spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { BranchgateClient } from '../client/client.ts';
import { dataOf } from '../client/response-error.ts';
import { CommandError } from './exit-codes.ts';
import { say } from './output.ts';
import { isAttended } from './terminal.ts';

const WAIT_MS = 300_000;
const PAGE = (text: string) => `<!doctype html><meta charset="utf-8"><title>branchgate</title><p>${text}</p>`;

export interface SignInTokens {
  access_token: string;
  refresh_token: string | null;
}

/**
 * Signs in with an identity provider in a browser, which returns to a port of this machine (RFC 8252, 7.3).
 * @param email leads to the provider of a company
 */
export async function signInByBrowser(
  { api }: BranchgateClient,
  { browser, email }: { browser: boolean; email?: string },
): Promise<SignInTokens> {
  if (!isAttended())
    throw new CommandError(
      'notSignedIn',
      'This needs an interactive terminal. Set BRANCHGATE_API_KEY and BRANCHGATE_URL, or give --email and --password-stdin.',
    );
  const code_verifier = randomBytes(32).toString('base64url');
  const state = randomBytes(16).toString('base64url');
  // An import at the start of the program would load all of Node's `fetch` with it, for `--help` too.
  const { createServer } = await import('node:http');
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  try {
    const redirect_uri = `http://127.0.0.1:${(server.address() as AddressInfo).port}/auth/callback`;
    const code_challenge = createHash('sha256').update(code_verifier).digest('base64url');
    const body = {
      redirect_uri,
      state,
      code_challenge,
      code_challenge_method: 'S256' as const,
      ...(email !== undefined && { email }),
    };
    const { authorization_url } = await dataOf(api.POST('/api/v1/auth/cli/start', { body }));
    const returned = receiveCode(server, state);
    say(`Open this address to sign in:\n${authorization_url}`);
    if (browser) openBrowser(authorization_url);
    const exchange = { code: await returned, redirect_uri, code_verifier };
    const tokens = await dataOf(api.POST('/api/v1/auth/cli/exchange', { body: exchange }));
    return { access_token: tokens.access_token, refresh_token: tokens.refresh_token };
  } finally {
    server.close();
    server.closeAllConnections();
  }
}

/**
 * The code of the first request with the right state.
 * @throws CommandError for a refusal, or after five minutes
 */
function receiveCode(server: Server, state: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      reject(new CommandError('timedOut', 'Nobody signed in within five minutes. Run the command again.'));
    }, WAIT_MS);
    server.once('close', () => clearTimeout(timer));
    server.on('request', (request, response) => {
      const { pathname, searchParams } = new URL(request.url ?? '/', 'http://127.0.0.1');
      const code = searchParams.get('code');
      const isReply = pathname === '/auth/callback' && searchParams.get('state') === state;
      response.writeHead(isReply ? 200 : 404, { 'Content-Type': 'text/html; charset=utf-8' });
      if (!isReply) return response.end(PAGE('Nothing is here.'));
      response.end(PAGE(code ? 'Signed in. Return to the terminal.' : 'The sign-in was refused.'));
      if (code) resolve(code);
      else reject(new CommandError('notSignedIn', 'The identity provider refused the sign-in.'));
    });
  });
}

const OPENERS: Partial<Record<NodeJS.Platform, [string, ...string[]]>> = {
  darwin: ['open'],
  linux: ['xdg-open'],
  win32: ['rundll32', 'url.dll,FileProtocolHandler'],
};

/** Only web addresses, because the opener of the system opens files and programs too. */
export function openBrowser(address: string): void {
  if (!/^https?:\/\//.test(address)) return;
  const [program, ...args] = OPENERS[process.platform] ?? ['xdg-open'];
  const child = spawn(program, [...args, address], { stdio: 'ignore', detached: true });
  // Without a browser, the person opens the printed address elsewhere.
  child.once('error', () => {});
  child.unref();
}
