import { setTimeout as sleep } from 'node:timers/promises';
import { expect, onTestFinished, test } from 'vitest';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { killGroup, Operator } from '../support/operator/operator.ts';

/**
 * When a run is killed: at a call that changes something, whose answer it never gets, or after some seconds.
 */
type Moment = { at: string } | { after: number };

const AT: Moment[] = [
  { at: 'create database' },
  { at: 'send secrets' },
  { at: 'attach' },
  { at: 'query CREATE TABLE `a`' },
  { at: 'upload' },
  { at: 'query CREATE TABLE IF NOT EXISTS' },
  { at: 'invite' },
];
const LATEST_SECONDS = 14;
const MOMENTS: Moment[] = [
  ...AT,
  ...Array.from({ length: 20 - AT.length }, () => ({ after: Math.random() * LATEST_SECONDS })),
];

/** Several kills of one deployment after another, each at what the one before has left. */
const KILLS_OF_A_DEPLOYMENT = 4;

function* deployments(moments: readonly Moment[]): Generator<Moment[]> {
  for (let begin = 0; begin < moments.length; begin += KILLS_OF_A_DEPLOYMENT)
    yield moments.slice(begin, begin + KILLS_OF_A_DEPLOYMENT);
}

async function runKilled(operator: Operator, moment: Moment): Promise<void> {
  const { pid, ended } = operator.start(operator.words());
  if ('after' in moment) {
    await Promise.race([ended, sleep(moment.after * 1000)]);
    killGroup(pid);
  } else {
    operator.cloudflare.beforeWrite = (call) => {
      if (call.startsWith(moment.at)) killGroup(pid);
    };
  }
  await ended;
  operator.cloudflare.beforeWrite = () => {};
}

test
  .runIf(IS_NIGHTLY)
  .each([...deployments(MOMENTS)].map((moments) => [JSON.stringify(moments), moments] as const))(
  'a deployment that is killed at %s is completed by the next run',
  async (_, moments) => {
    const operator = await Operator.open();
    onTestFinished(() => operator.close());
    for (const moment of moments) await runKilled(operator, moment);
    const { code, stderr } = await operator.run(...operator.words());
    expect(code, stderr).toBe(0);

    const { databases, domains } = operator.cloudflare;
    expect([...databases.values()].map(({ name }) => name)).toEqual(['gate']);
    const [made] = databases.values();
    const tables = made?.database
      .prepare("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
      .all();
    expect(tables?.map(({ name }) => name)).toEqual(['a', 'b', 'd1_migrations', 'sqlite_sequence']);
    expect([...domains]).toEqual([['gateway.example.test', 'gate']]);
    expect(operator.cloudflare.settings('gate')).toMatchObject(operator.readSecrets());
    expect(Object.keys(operator.readSecrets())).toEqual([
      'BASE_URL',
      'CREDENTIAL_KEYS',
      'JWT_KEYS',
      'PLATFORM_SECRET',
    ]);
    expect(operator.invitations).toHaveLength(1);
    expect(operator.readRecord()).toMatchObject({
      database_id: [...databases.keys()][0],
      secrets_to_send: [],
      release: { version_id: operator.cloudflare.serving('gate').id, answered: true },
      owner_invited: true,
    });
  },
);
