import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { sha256Of, siblingOf } from '../../agent/upgrade/program-file.ts';
import { readRunRecord } from '../../agent/upgrade/trial.ts';
import { hostFolder } from '../../dev/stack/host-folder.ts';
import { Api, type ApiResponse, type ProjectBody } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

const run = promisify(execFile);

let stack: Stack;
let api: Api;
let project: ProjectBody;
let program: string;
let stateDir: string;

beforeAll(async () => {
  stack = await startStack();
  api = new Api(stack.url, await stack.token());
  project = await api.project('Upgraded');
  await api.allow(project.id);
  const host = hostFolder(stack.state.host_dir, {});
  program = join(host.programs, 'branchgate-agent.mjs');
  stateDir = host.state;
});
afterAll(() => stack.stop());

const present = () => readFileSync(program, 'utf8');

/** The bundle as another release. */
const release = (version: string, text = present()) =>
  replaced(text, /version: "\d+\.\d+\.\d+(?=",\s+private)/, `version: "${version}`);

/** A release that ends as soon as it runs. */
const defective = (text: string) =>
  replaced(text, /async function runAgent\(\w+\) \{/, (start) => `${start} throw new Error("defect");`);

function replaced(text: string, part: RegExp, by: string | ((found: string) => string)): string {
  const changed = text.replace(part, by as string);
  if (changed === text) throw new Error(`the agent's bundle has no ${part}`);
  return changed;
}

/** A release as a file, with the arguments of `upgrade`. */
function downloaded(text: string): string[] {
  const file = join(stack.devDir, 'download.mjs');
  writeFileSync(file, text);
  return [program, 'upgrade', file, '--sha256', sha256Of(Buffer.from(text))];
}

/** As root where the test is run by root: the agent's own user cannot change its program. */
const inTool = {
  env: {
    PATH: process.env.PATH ?? '',
    get STATE_DIR() {
      return stateDir;
    },
  },
};

const untilLinked = (version: string) =>
  eventually(async () => {
    const { stdout } = await run(process.execPath, [program, '--version']);
    expect(stdout.trim()).toBe(version);
    expect(readRunRecord(stateDir)).toMatchObject({
      linked: true,
      trial: null,
      sha256: sha256Of(readFileSync(program)),
    });
  }, 60);

/**
 * Transactions one after another on one connection.
 * @returns how many were committed, as the database counts them
 */
async function transact(
  client: pg.Client,
  signal: AbortSignal,
): Promise<{ committed: number; stored: number }> {
  let committed = 0;
  for (; !signal.aborted; committed += 1) {
    await client.query('begin');
    await client.query('insert into counted values ($1)', [committed]);
    await client.query('commit');
  }
  const { rows } = await client.query('select count(*)::int as stored from counted');
  return { committed, stored: rows[0].stored };
}

/**
 * Sends a request that needs the host, again and again until `signal`, or once.
 * @returns how it ended each time
 */
async function request(send: () => Promise<ApiResponse>, signal?: AbortSignal): Promise<string[]> {
  const outcomes: string[] = [];
  do {
    const { status, body } = await send();
    outcomes.push(status < 300 ? 'done' : `${status} ${body.error}`);
  } while (signal?.aborted === false);
  return outcomes;
}

test.runIf(IS_NIGHTLY)(
  'an upgrade under load fails no transaction and no request, except for 503 while the agent restarts',
  async () => {
    const path = `/api/v1/projects/${project.id}/branches`;
    await query((await api.credentials(project.id, 'main')).direct_url, 'create table counted (n int)');
    const branch = await api.branch(project.id, 'busy');
    const urls = [
      await api.credentials(project.id, 'main'),
      await api.credentials(project.id, branch.branch_name),
    ];
    const clients = [await connect(urls[0]?.database_url ?? ''), await connect(urls[1]?.direct_url ?? '')];
    const over = new AbortController();
    const load = Promise.all([
      Promise.all(clients.map((client) => transact(client, over.signal))),
      request(() => api.get(`${path}/main/tables`), over.signal),
      Promise.all(
        [1, 2].map((n) => request(() => api.post(path, { branch_name: `made-${n}`, from: 'busy' }))),
      ),
    ]);
    await run(process.execPath, downloaded(release('9.0.1')), inTool).finally(() => over.abort());
    const [transactions, reads, creations] = await load;
    await Promise.all(clients.map((client) => client.end()));

    for (const { committed, stored } of transactions) {
      expect(committed).toBeGreaterThan(0);
      expect(stored).toBe(committed);
    }
    expect(new Set([...reads, ...creations.flat()])).toEqual(
      expect.toBeOneOf([new Set(['done']), new Set(['done', '503 HOST_UNAVAILABLE'])]),
    );
    await untilLinked('9.0.1');
    expect(existsSync(siblingOf(program, 'previous'))).toBe(false);
  },
);

test.runIf(IS_NIGHTLY)('a release without its checksum, or with a wrong one, is not installed', async () => {
  const before = present();
  const [tool = '', command = '', file = ''] = downloaded(release('9.0.2'));
  for (const words of [[], ['--sha256', '0'.repeat(64)], ['--signature', file]])
    await expect(run(process.execPath, [tool, command, file, ...words], inTool)).rejects.toThrow();
  expect(present()).toBe(before);
});

test.runIf(IS_NIGHTLY)(
  'killed during the upgrade to a defective release, the agent goes back by itself, and the next upgrade works',
  async () => {
    const before = readRunRecord(stateDir)?.pid;
    const tool: ChildProcess = spawn(process.execPath, downloaded(defective(release('9.0.3'))), {
      ...inTool,
      stdio: 'ignore',
    });
    await eventually(async () => expect(present()).toContain('throw new Error("defect")'), 60);
    tool.kill('SIGKILL');
    if (tool.exitCode === null && tool.signalCode === null) await once(tool, 'exit');
    // It may have been killed before it asked the agent to restart, which a crash does as well.
    await stack.kill('agent');
    await eventually(async () => {
      const record = readRunRecord(stateDir);
      expect(record).toMatchObject({ linked: true, trial: { failed: true } });
      expect(record?.pid).not.toBe(before);
    }, 60);
    await stack.untilReady();
    expect((await api.get(`/api/v1/projects/${project.id}/branches/main/tables`)).status).toBe(200);
    const doctor = await stack.agentTool('doctor').catch((error: { stdout: string }) => error);
    expect(doctor.stdout).toContain('The installed program did not link');

    const good = release('9.0.4', readFileSync(siblingOf(program, 'previous'), 'utf8'));
    await run(process.execPath, downloaded(good), inTool);
    await untilLinked('9.0.4');
  },
);

test.runIf(IS_NIGHTLY)(
  'the tool reports a defective release, and has put the one before it back',
  async () => {
    const before = present();
    const failure = await run(process.execPath, downloaded(defective(release('9.0.5'))), inTool).then(
      () => null,
      (error: { code: number; stderr: string }) => error,
    );
    expect(failure).toMatchObject({ code: 1, stderr: expect.stringContaining('did not link') });
    expect(present()).toBe(before);
    await stack.untilReady();
  },
);
