import { expect, test } from 'vitest';
import { LIMITS } from '../../../edge/rate-limits/limits.ts';
import { type Env, readSettings } from '../../../edge/settings.ts';

const settingsWith = (variables: Record<string, string>) =>
  readSettings({
    IDP_URL: 'https://idp.example.com',
    CREDENTIAL_KEYS: `1:${btoa('k'.repeat(32))}`,
    PLATFORM_SECRET: 'p'.repeat(32),
    ...variables,
  } as unknown as Env);

const maxima = (variables: Record<string, string>) =>
  Object.fromEntries(Object.entries(LIMITS).map(([name, { max }]) => [name, max(settingsWith(variables))]));

test("the specification's numbers, by the minute; rotations by the hour", () => {
  expect(maxima({})).toEqual({
    reads: 1000,
    writes: 200,
    public: 60,
    failed_authentication: 60,
    rotations: 5,
  });
  expect(Object.values(LIMITS).map(({ windowSeconds }) => windowSeconds)).toEqual([60, 60, 60, 60, 3600]);
});

test('each is set by its own variable', () => {
  const variables = {
    LIMIT_READS_PER_MINUTE: '5',
    LIMIT_WRITES_PER_MINUTE: '6',
    LIMIT_PUBLIC_PER_MINUTE: '7',
  };
  expect(maxima(variables)).toEqual({
    reads: 5,
    writes: 6,
    public: 7,
    failed_authentication: 7,
    rotations: 5,
  });
});

test.each(['0', '-1', '1.5', 'many', 'Infinity', ' '])('%j is no limit', (value) => {
  expect(() => settingsWith({ LIMIT_WRITES_PER_MINUTE: value })).toThrow(
    'missing or invalid settings: LIMIT_WRITES_PER_MINUTE',
  );
});
