import { expect, test } from 'vitest';
import { readSettings as readAgentSettings } from '../../agent/process/settings.ts';
import { readSettings } from '../../edge/settings.ts';
import { SETTINGS } from '../support/worker/worker.ts';

test('the defaults are those of the specification', () => {
  expect(readSettings({ ...SETTINGS, PASSWORD_COST: undefined })).toMatchObject({
    PASSWORD_COST: 15,
    SERVICE_NAME: 'branchgate',
    BASE_IDP_KEY_ENDPOINT: `${SETTINGS.IDP_URL}/v1/keys/paseto-v4-public`,
    JWT_ACCESS_TTL_SECONDS: 15 * 60,
    JWT_REFRESH_TTL_SECONDS: 7 * 24 * 3600,
    MEASURE_INTERVAL_SECONDS: 60,
    EXPIRED_RETENTION_SECONDS: 7 * 24 * 3600,
    LIMIT_READS_PER_MINUTE: 1000,
    LIMIT_WRITES_PER_MINUTE: 200,
    IDP_PASSWORD_GRANT: false,
    TWO_FACTOR: 'prompt',
  });
  expect(readAgentSettings({})).toMatchObject({ MEASURE_INTERVAL_SECONDS: 60, POOLER_MAX_CLIENTS: 200 });
});

test('expired branches, which need no slot, are kept for at most 30 days', () => {
  const days = (count: number) => ({ ...SETTINGS, EXPIRED_RETENTION_SECONDS: String(count * 86_400) });
  expect(readSettings(days(30)).EXPIRED_RETENTION_SECONDS).toBe(2_592_000);
  expect(() => readSettings(days(31))).toThrow('EXPIRED_RETENTION_SECONDS');
});
