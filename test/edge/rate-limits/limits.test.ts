import { expect, test } from 'vitest';
import type { Env } from '../../../edge/env.ts';
import { LIMITS } from '../../../edge/rate-limits/limits.ts';
import { readSettings } from '../../../edge/settings.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

const settingsWith = (variables: Record<string, string>) =>
  readSettings({
    ...SETTINGS,
    ...variables,
  } as unknown as Env);

const maxima = (variables: Record<string, string>) =>
  Object.fromEntries(Object.entries(LIMITS).map(([name, { max }]) => [name, max(settingsWith(variables))]));

test("the specification's limits are per minute, those of rotations and sign-in per hour", () => {
  expect(maxima({})).toEqual({
    reads: 1000,
    writes: 200,
    machine_reads: 500,
    machine_writes: 100,
    sql: 3000,
    wrong_sql_passwords: 50,
    public: 60,
    agents: 60,
    failed_authentication: 60,
    failed_platform_secret: 60,
    rotations: 5,
    wrong_passwords: 30,
    wrong_passwords_of_address: 100,
    wrong_codes_of_address: 100,
    mails_of_address: 200,
    invitations: 50,
    unasked_mails: 10,
    owner_notices: 10,
    alerts: 30,
    client_registrations: 20,
    client_documents: 20,
    client_documents_of_address: 60,
    second_factor_tries: 5,
    wrong_second_factors: 30,
    page_renewals: 1,
    single_use: 1,
  });
  const byTheMinute = [
    'reads',
    'writes',
    'machine_reads',
    'machine_writes',
    'sql',
    'wrong_sql_passwords',
    'public',
    'agents',
    'failed_authentication',
    'failed_platform_secret',
  ];
  for (const [name, { windowSeconds }] of Object.entries(LIMITS)) {
    const ofOthers = { page_renewals: 10, single_use: 7200, unasked_mails: 86_400 }[name] ?? 3600;
    expect(windowSeconds, name).toBe(byTheMinute.includes(name) ? 60 : ofOthers);
  }
});

test('each limit has its own variable', () => {
  const variables = {
    LIMIT_READS_PER_MINUTE: '5',
    LIMIT_WRITES_PER_MINUTE: '6',
    LIMIT_PUBLIC_PER_MINUTE: '7',
    LIMIT_SQL_PER_MINUTE: '8',
  };
  expect(maxima(variables)).toEqual({
    ...maxima({}),
    reads: 5,
    writes: 6,
    // Half of the tenant's.
    machine_reads: 3,
    machine_writes: 3,
    sql: 8,
    public: 7,
    failed_authentication: 7,
    failed_platform_secret: 7,
  });
});

test.each(['0', '-1', '1.5', 'many', 'Infinity', ' '])('%j is not a valid limit', (value) => {
  expect(() => settingsWith({ LIMIT_WRITES_PER_MINUTE: value })).toThrow(
    'missing or invalid settings: LIMIT_WRITES_PER_MINUTE (integer from 1)',
  );
});
