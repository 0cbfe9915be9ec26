import { existsSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { ADDRESS, Operator, URL_OF_GATEWAY } from '../support/operator/operator.ts';

const WORKER = 'gate';

let operator: Operator;

beforeAll(async () => {
  operator = await Operator.open();
});
afterAll(() => operator.close());

const cloudflare = () => operator.cloudflare;
const run = (...words: string[]) => operator.run(...words, '--artifacts', operator.artifacts);
const upgrade = () => run('upgrade', '--wait', '2');

/** What a run of an operator writes at Cloudflare. */
async function writesOf<T>(work: () => Promise<T>): Promise<{ result: T; writes: string[] }> {
  const before = cloudflare().writes.length;
  const result = await work();
  return { result, writes: cloudflare().writes.slice(before) };
}

// Each test continues with the deployment of the one before, as an operator does. By day
// `uploaded.worker.test.ts` deploys this checkout.
describe.runIf(IS_NIGHTLY)('from an empty folder to a deployed gateway', () => {
  test('--dry-run says what would be made, and makes nothing', async () => {
    const { result, writes } = await writesOf(() => operator.run(...operator.words(), '--dry-run', '--json'));
    expect(result).toMatchObject({ code: 0, stderr: '' });
    const { done } = JSON.parse(result.stdout) as { done: { step: string }[] };
    expect(done.map(({ step }) => step)).toEqual(['database', 'migrations', 'secrets', 'release', 'owner']);
    expect(writes).toEqual([]);
    expect(existsSync(join(operator.record, 'deployment.json'))).toBe(false);
    expect(existsSync(operator.secretsFile)).toBe(false);
  });

  test('a domain that is not in the account is named, after what could be made', async () => {
    cloudflare().zones = [];
    const { code, stderr } = await operator.run(...operator.words());
    cloudflare().zones = ['example.test'];
    expect(code).toBe(1);
    expect(stderr).toContain('No domain of this Cloudflare account contains the address of the gateway.');
    expect(stderr).toContain('Add the domain to the account');
  });

  test('the next run continues, and waits for the certificate of the new domain', async () => {
    const { gateway } = operator;
    operator.gateway = () => new Response(null, { status: 525 });
    const waiting = await run('--wait', '0');
    operator.gateway = gateway;
    expect(waiting.code).toBe(8);
    expect(waiting.stderr).toContain('does not answer: it responded to /readyz with status 525.');
    expect(waiting.stderr).toContain('run the command again, which continues here');

    const { result, writes } = await writesOf(() => operator.deploy());
    expect(result.done.map(({ step }) => step)).toEqual(['release', 'owner']);
    expect(writes).toEqual([]);
    expect([...cloudflare().databases.values()].map(({ name }) => name)).toEqual([WORKER]);
    expect([...cloudflare().domains]).toEqual([[ADDRESS, WORKER]]);
    expect(cloudflare().crons.get(WORKER)).toEqual([expect.stringMatching(/^\d+ \*\/6 \* \* \*$/)]);
    expect(cloudflare().settings(WORKER)).toEqual({
      ...operator.readSecrets(),
      SERVICE_NAME: 'branchgate',
      MAIL_FROM: 'Gate <gate@example.test>',
      MAIL_API_URL: 'https://mail.example.test/send',
      IDP_URL: 'https://idp.example.test',
    });
    expect(operator.invitations).toEqual([
      { tenant_id: WORKER, name: WORKER, owner_email: 'ada@example.test' },
    ]);
  });

  test('a second run changes nothing', async () => {
    const { result, writes } = await writesOf(() => run());
    expect(result).toEqual({
      code: 0,
      stdout: '',
      stderr: `${URL_OF_GATEWAY} is complete; nothing was changed.\n`,
    });
    expect(writes).toEqual([]);
  });

  test('an upgrade applies migrations first, and keeps every setting and secret, also those of the dashboard', async () => {
    cloudflare().set(WORKER, { type: 'plain_text', name: 'ALERT_EMAIL', text: 'alert@example.test' });
    cloudflare().set(WORKER, { type: 'secret_text', name: 'OTHER_SECRET', text: 'other' });
    const before = cloudflare().settings(WORKER);
    operator.release('second', { '0001_second.sql': 'CREATE TABLE `c` (`id` text);' });
    const { result, writes } = await writesOf(() => upgrade());
    expect(result.code, result.stderr).toBe(0);
    expect(writes.findIndex((call) => call.includes('`c`'))).toBeLessThan(
      writes.findIndex((call) => call.startsWith('deploy a version')),
    );
    expect(cloudflare().settings(WORKER)).toEqual(before);
    expect([...cloudflare().serving(WORKER).modules.values()].join()).toContain('second');
  });

  test('a database of before version 1.0.0 is refused, and nothing changes', async () => {
    const [made] = cloudflare().databases.values();
    const renamed = (from: string, to: string) =>
      made?.database.exec(`UPDATE d1_migrations SET name = '${to}' WHERE name = '${from}'`);
    renamed('0000_first.sql', '0000_initial.sql');
    operator.release('third', { '0002_third.sql': 'CREATE TABLE `d` (`id` text);' });
    const { result, writes } = await writesOf(() => upgrade());
    expect(result).toMatchObject({
      code: 6,
      stderr: expect.stringContaining('Nothing was changed: the database was made before version 1.0.0'),
    });
    expect(writes).toEqual([]);
    renamed('0000_initial.sql', '0000_first.sql');
    operator.release('second', {});
    rmSync(join(operator.artifacts, 'migrations/0002_third.sql'));
  });

  test('doctor compares D1 with the release that was deployed, and not with this checkout', async () => {
    const { stdout } = await operator.run('doctor', '--json');
    const { checks } = JSON.parse(stdout.split('\n')[0] ?? '') as {
      checks: { check: string; ok: boolean }[];
    };
    expect(checks.find(({ check }) => check === 'database')).toMatchObject({ ok: true });
  });

  test('a setting and a secret of a later run are added to the others', async () => {
    operator.hasHost = true;
    const before = cloudflare().settings(WORKER);
    const vars = { TWO_FACTOR: 'required', IPV6_HOST: 'ipv6.gate.example.test' };
    const MAIL_API_KEY = 'key-of-the-mail-service';
    const added = { ...vars, MAIL_API_KEY };
    const named = Object.entries(vars).flatMap(([name, value]) => ['--var', `${name}=${value}`]);
    const words = [...named, '--artifacts', operator.artifacts];
    const { code, stderr } = await operator.start(words, { MAIL_API_KEY }).ended;
    expect(code, stderr).toBe(0);
    expect(cloudflare().settings(WORKER)).toEqual({ ...before, ...added });
    expect(operator.readSecrets()).toMatchObject({ MAIL_API_KEY });
    expect(JSON.stringify(operator.readRecord())).not.toContain(MAIL_API_KEY);
    // The console may ask that name for the address of its browser, and nothing else.
    const headers = readFileSync(join(operator.artifacts, 'console/_headers'), 'utf8');
    expect(headers).toContain(`connect-src 'self' https://${vars.IPV6_HOST};`);
    // From now on a version that loses the hosts is rolled back as well.
    expect(operator.readRecord().release).toMatchObject({ needs_host: true, answered: true });
  });

  test('a version that does not answer is rolled back', async () => {
    operator.hasHost = true;
    const before = cloudflare().serving(WORKER);
    operator.release('broken');
    const { code, stderr } = await upgrade();
    expect(code).toBe(1);
    expect(stderr).toContain('did not answer within 2 s: it responded to /readyz with status 500');
    expect(cloudflare().serving(WORKER)).toEqual(before);
  });
});

describe.runIf(IS_NIGHTLY)('keys', () => {
  test('a rotation puts a new key first, also if it is interrupted', async () => {
    operator.release('third');
    const before = operator.readSecrets();
    cloudflare().beforeWrite = (call) => {
      if (call.startsWith('send secrets')) throw new Error('the network is gone');
    };
    expect((await run('rotate-keys')).code).toBe(1);
    cloudflare().beforeWrite = () => {};
    expect(cloudflare().settings(WORKER)).toMatchObject(before);
    const { done } = await operator.deploy('rotate-keys');
    expect(done.map(({ step }) => step)).toEqual(['secrets', 'release']);
    const after = operator.readSecrets();
    for (const name of ['CREDENTIAL_KEYS', 'JWT_KEYS']) {
      expect(after[name]).toMatch(/^k2:[A-Za-z0-9+/]{43}=,k1:/);
      expect(after[name]?.split(',')[1]).toBe(before[name]);
    }
    expect(after.PLATFORM_SECRET).toBe(before.PLATFORM_SECRET);
    expect(cloudflare().settings(WORKER)).toMatchObject(after);
  });
});

describe.runIf(IS_NIGHTLY)('a lost record', () => {
  test('is not continued by accident, but by --adopt, which keeps everything', async () => {
    const before = cloudflare().settings(WORKER);
    renameSync(operator.record, `${operator.record}.lost`);
    const { result, writes } = await writesOf(() => operator.run(...operator.words()));
    expect(result.code).toBe(6);
    expect(result.stderr).toContain(
      'has a D1 database named gate already. Choose another --name, or add --adopt',
    );
    expect(writes).toEqual([]);
    const invited = operator.invitations.length;
    await operator.deploy('--name', WORKER, '--secrets-file', operator.secretsFile, '--adopt');
    expect(cloudflare().settings(WORKER)).toEqual(before);
    expect(operator.invitations.length).toBe(invited);
  });
});
