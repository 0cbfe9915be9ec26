import { expect, test } from 'vitest';
import { readSettings } from '../../../agent/process/settings.ts';

test('every setting has a default or is optional; an empty variable counts as missing', () => {
  expect(readSettings({ POSTGRES_PORT: '' })).toMatchObject({ POSTGRES_PORT: 5432, POOLER_PORT: 6432 });
});

test('the watchdogs are on, and an unknown value of GUARDS is refused', () => {
  expect(readSettings({}).GUARDS).toBe('on');
  expect(() => readSettings({ GUARDS: 'false' })).toThrow(/GUARDS \(on or off\)$/);
});

test('an error names the variables without their values', () => {
  const read = () =>
    readSettings({ POSTGRES_PORT: 'secret', STATE_DIR: 'relative', GATEWAY_URL: 'ftp://secret' });
  expect(read).toThrow(
    /^missing or invalid settings: GATEWAY_URL \(URL\), STATE_DIR \(absolute path\), POSTGRES_PORT \(integer from 1 to 65535\)$/,
  );
});

test('FOLLOW_PRIVATE_NETWORKS is a list of networks, none by default', () => {
  expect(readSettings({}).FOLLOW_PRIVATE_NETWORKS).toEqual([]);
  const networks = readSettings({ FOLLOW_PRIVATE_NETWORKS: '10.0.0.0/8, 192.168.1.7,fd00::/8' });
  expect(networks.FOLLOW_PRIVATE_NETWORKS).toEqual(['10.0.0.0/8', '192.168.1.7/32', 'fd00::/8']);
  expect(() => readSettings({ FOLLOW_PRIVATE_NETWORKS: '10.0.0.1/8' })).toThrow(
    /FOLLOW_PRIVATE_NETWORKS \(networks, comma-separated\)$/,
  );
});
