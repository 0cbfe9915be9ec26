import { execFile } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { bundleAction } from '../../dev/build/action.ts';
import { ROOT } from '../../dev/build/repository.ts';
import { oncePerRun } from '../support/run-folder.ts';
import { type OidcIssuer, startOidcIssuer } from '../support/sign-in/oidc-issuer.ts';
import { temporaryFolder } from '../support/stack/stack.ts';

const REPOSITORY = 'acme/shop';
const RUNNER_TOKEN = 'token-of-the-runner';
export const GITHUB_TOKEN = 'token-of-the-workflow';

/** The inputs of `action.yml` with their defaults, which a runner sets. */
export function defaultInputs(): Record<string, string> {
  const [, inputs = ''] =
    /^inputs:\n(.*?)^outputs:/ms.exec(readFileSync(join(ROOT, 'action/action.yml'), 'utf8')) ?? [];
  const blocks = inputs.split(/^ {2}(?=\S)/m).filter((block) => block.trim() !== '');
  return Object.fromEntries(
    blocks.map((block) => {
      const [, name = ''] = /^([\w-]+):/.exec(block) ?? [];
      const [, value = ''] = /^ {4}default: (.*)$/m.exec(block) ?? [];
      return [
        name,
        value.replace(/^(['"])(.*)\1$/, '$2').replace(/^\$\{\{ github\.token \}\}$/, GITHUB_TOKEN),
      ];
    }),
  );
}

export interface Comment {
  id: number;
  body: string;
  user: { type: 'Bot' | 'User' };
}

/**
 * The services of a run of GitHub Actions that the action uses: ID tokens, and the comments of a pull
 * request.
 */
export class Runner {
  readonly folder = temporaryFolder();
  readonly comments: Comment[] = [];
  /** Status of the API of comments, to be set to that of a refusal. */
  refusal: number | null = null;
  readonly #issuer: OidcIssuer;
  readonly #server = createServer(async (request, response) => {
    const { pathname, searchParams } = new URL(request.url ?? '', 'http://runner');
    const reply = (status: number, body: unknown) =>
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
    const isOf = (token: string) => request.headers.authorization === `Bearer ${token}`;
    if (pathname === '/id-token') {
      if (!isOf(RUNNER_TOKEN)) return reply(401, {});
      return reply(200, { value: await this.idToken(searchParams.get('audience') ?? '') });
    }
    if (!isOf(GITHUB_TOKEN) || this.refusal !== null) return reply(this.refusal ?? 401, {});
    const body = request.method === 'GET' ? '' : (JSON.parse(await text(request)) as Comment).body;
    if (pathname === `/repos/${REPOSITORY}/issues/7/comments`) {
      if (request.method === 'GET') {
        const page = Number(searchParams.get('page'));
        const perPage = Number(searchParams.get('per_page'));
        return reply(200, this.comments.slice((page - 1) * perPage, page * perPage));
      }
      const comment = { id: this.comments.length + 1, body, user: { type: 'Bot' as const } };
      this.comments.push(comment);
      return reply(201, comment);
    }
    const [, id] = new RegExp(`^/repos/${REPOSITORY}/issues/comments/(\\d+)$`).exec(pathname) ?? [];
    const comment = this.comments.find((one) => one.id === Number(id));
    if (request.method !== 'PATCH' || !comment) return reply(404, {});
    comment.body = body;
    return reply(200, comment);
  });

  private constructor(issuer: OidcIssuer) {
    this.#issuer = issuer;
  }

  static async start(): Promise<Runner> {
    const runner = new Runner(await startOidcIssuer('RS256'));
    await new Promise<void>((resolve) => runner.#server.listen(0, '127.0.0.1', resolve));
    return runner;
  }

  get issuer(): string {
    return this.#issuer.url;
  }

  get #url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** The ID token of a run of this repository. */
  idToken(audience: string): Promise<string> {
    const claims = { aud: audience, repository: REPOSITORY, ref: 'refs/pull/7/merge' };
    return this.#issuer.token({ ...claims, sub: `repo:${REPOSITORY}:pull_request` });
  }

  /** Runs the action's entry point as a runner does, for an event of pull request 7. */
  async run(inputs: Record<string, string>, { action = 'opened', isFork = false, merged = false } = {}) {
    writeFileSync(this.#file('event.json'), JSON.stringify({ action, pull_request: { number: 7, merged } }));
    return this.#step('action.mjs', inputs, isFork ? {} : this.#idTokens);
  }

  /** Runs the entry point of the end of the job. @param state what the main step has left */
  finish(inputs: Record<string, string>, state: Record<string, string>) {
    const left = Object.entries(state).map(([name, value]) => [`STATE_${name}`, value]);
    return this.#step('post.mjs', inputs, { ...this.#idTokens, ...Object.fromEntries(left) });
  }

  #file(name: string): string {
    return join(this.folder, name);
  }

  get #idTokens() {
    return {
      ACTIONS_ID_TOKEN_REQUEST_URL: `${this.#url}/id-token?api-version=2.0`,
      ACTIONS_ID_TOKEN_REQUEST_TOKEN: RUNNER_TOKEN,
    };
  }

  async #step(entry: string, inputs: Record<string, string>, more: Record<string, string>) {
    const output = this.#file('output');
    const state = this.#file('state');
    const exported = this.#file('exported');
    for (const file of [output, state, exported]) writeFileSync(file, '');
    const given = Object.entries({ ...defaultInputs(), ...inputs });
    const { PATH = '' } = process.env;
    const env = {
      PATH,
      ...Object.fromEntries(given.map(([name, value]) => [`INPUT_${name.toUpperCase()}`, value])),
      GITHUB_OUTPUT: output,
      GITHUB_STATE: state,
      GITHUB_ENV: exported,
      RUNNER_TEMP: this.folder,
      GITHUB_EVENT_PATH: this.#file('event.json'),
      GITHUB_REPOSITORY: REPOSITORY,
      GITHUB_API_URL: this.#url,
      ...more,
    };
    const bundles = await oncePerRun('action', bundleAction);
    const ended = await new Promise<{ code: number; log: string }>((resolve) => {
      execFile(
        process.execPath,
        [join(bundles, entry)],
        { env, cwd: this.folder },
        (error, stdout, stderr) => {
          resolve({ code: error ? Number(error.code) : 0, log: stdout + stderr });
        },
      );
    });
    const read = (file: string) => valuesIn(readFileSync(file, 'utf8'));
    return { ...ended, outputs: read(output), state: read(state), exported: read(exported) };
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await Promise.all([this.#issuer.stop(), new Promise((resolve) => this.#server.close(resolve))]);
  }
}

/** `name<<delimiter`, the value, and the delimiter. */
const valuesIn = (file: string): Record<string, string> =>
  Object.fromEntries(
    [...file.matchAll(/^(\S+)<<(\S+)\n([\s\S]*?)\n\2$/gm)].map(([, name = '', , value = '']) => [
      name,
      value,
    ]),
  );
